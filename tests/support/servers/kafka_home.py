"""What a native Kafka needs on this machine: Java, and Kafka's jars, fetched once by Maven.

Kept in `.cache/kafka/<version>`, outside of git, beside what a first start makes to speed up the next.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import Missing

POM = Path(__file__).with_name("pom.xml")
CACHE = Path(__file__).parents[3] / ".cache" / "kafka"
FETCH_S_MAX = 600.0

# A broker that lives for a minute gains nothing from the second compiler or a parallel collector.
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms128m", "-Xmx512m", "-XX:-UsePerfData")
QUIET_ARCHIVE = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


@dataclass(frozen=True, slots=True)
class KafkaHome:
    """A Java and the folder of one Kafka version."""

    java: str
    version: str
    folder: Path

    @property
    def checkpoint(self) -> Path:
        """What formatting a data folder writes; the same for every node of this version."""
        return self.folder / "bootstrap.checkpoint"

    @property
    def archive(self) -> Path:
        """Loaded classes, as Java keeps them (AppCDS): saves a start a second."""
        return self.folder / "classes.jsa"

    def command(self, main: str, *arguments: str, archive_to: Path | None = None) -> list[str]:
        """How to run Kafka's class `main`; `archive_to` writes its classes there when it ends."""
        # Every jar by name: an archive holds for one exact class path only.
        jars = ":".join(str(jar) for jar in sorted(self.folder.glob("*.jar")))
        archive: Sequence[str] = ()
        if archive_to:
            archive = (f"-XX:ArchiveClassesAtExit={archive_to}", *QUIET_ARCHIVE)
        elif self.archive.exists():
            archive = (f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto", *QUIET_ARCHIVE)
        settings = ("-Dlog4j2.configurationFile=log4j2.properties",)
        return [self.java, *SMALL_JVM, *archive, *settings, "-cp", jars, main, *arguments]


def find_home() -> KafkaHome:
    """Kafka's home, its jars fetched if they were not. Raises Missing."""
    java = shutil.which("java")
    if java is None:
        raise Missing("no java in PATH")
    found = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>(.+?)</version>", POM.read_text())
    assert found, POM
    home = KafkaHome(java, found[1], CACHE / found[1])
    if not home.folder.exists():
        fetch_jars(home.folder)
    return home


def fetch_jars(folder: Path) -> None:
    """Have Maven copy Kafka's jars to `folder`, which appears whole or not at all. Raises Missing."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("no mvn in PATH to fetch Kafka")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as half_made:
        jars = Path(half_made, "jars")
        command = [
            maven,
            "-q",
            "-B",
            "-f",
            str(POM),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={jars}",
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_S_MAX)
        except subprocess.CalledProcessError as failed:
            raise Missing(f"mvn could not fetch Kafka: {failed.stdout[-300:].strip()}") from failed
        except subprocess.TimeoutExpired as failed:
            raise Missing("mvn took too long to fetch Kafka") from failed
        if not folder.exists():  # another run may have been faster
            jars.replace(folder)
