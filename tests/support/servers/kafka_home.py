"""The programs of a native Kafka: Java, and Kafka's jars, which Maven fetches once.

The jars are in `.cache/kafka/<version>`, with files of the first start that speed up later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers.maven import fetch_jars, find_java, version_in

POM = Path(__file__).with_name("pom.xml")
CACHE = Path(__file__).parents[3] / ".cache" / "kafka"

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
        """A file that formatting writes, equal for every node of this version."""
        return self.folder / "bootstrap.checkpoint"

    @property
    def archive(self) -> Path:
        """Java's archive of loaded classes (AppCDS); shortens a start by a second."""
        return self.folder / "classes.jsa"

    def command(self, main: str, *arguments: str, archive_to: Path | None = None) -> list[str]:
        """Returns the command that runs Kafka's class `main`; Java writes `archive_to` at its end."""
        # Every jar by name: an archive is valid for one exact class path only.
        jars = ":".join(str(jar) for jar in sorted(self.folder.glob("*.jar")))
        archive: Sequence[str] = ()
        if archive_to:
            archive = (f"-XX:ArchiveClassesAtExit={archive_to}", *QUIET_ARCHIVE)
        elif self.archive.exists():
            archive = (f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto", *QUIET_ARCHIVE)
        settings = ("-Dlog4j2.configurationFile=log4j2.properties",)
        return [self.java, *SMALL_JVM, *archive, *settings, "-cp", jars, main, *arguments]


def find_home() -> KafkaHome:
    """Returns Kafka's home; fetches the jars when they are missing. Raises Missing."""
    version = version_in(POM, "kafka_2.13")
    home = KafkaHome(find_java(), version, CACHE / version)
    fetch_jars(POM, home.folder, "Kafka")
    return home
