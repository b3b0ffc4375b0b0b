"""The witness of the chain: a file or a topic outside the database that has the last entry.

See docs/decisions/0078 for what is found with it, and what is not.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from analyzer.kernel.database.chain import Tip, Witness
from analyzer.kernel.errors import WitnessAway

TOPIC = "kafka:"  # in front of the name of a topic


def witness_kind(place: str) -> Literal["topic", "file"]:
    """Returns what a place names."""
    return "topic" if place.startswith(TOPIC) else "file"


def witness_opener(place: str, options: Mapping[str, Any]) -> Callable[[], Witness]:
    """Returns what opens the witness at a place: the path of a file, or "kafka:" and a topic.

    Args:
        place: As the configuration names it.
        options: Of kafka-python's clients.
    """
    if witness_kind(place) == "file":
        return lambda: FileWitness(Path(place))

    def open_topic() -> Witness:
        from analyzer.sources.kafka.witness_topic import TopicWitness

        return TopicWitness(place.removeprefix(TOPIC), options)

    return open_topic


class FileWitness:
    """A file with the last entry, for an installation on one host.

    Args:
        path: Of the file; another one with `.lock` behind its name keeps two processes from writing at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def seen(self) -> Tip | None:
        """Returns the newest tip that was noted; None before the first. Raises WitnessAway."""
        try:
            return Tip.parse(self._path.read_text())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._away(error) from error

    def note(self, tip: Tip) -> None:
        """Remembers a tip, unless a newer one is known. Raises WitnessAway."""
        try:
            with self._locked():
                seen = self.seen()
                if seen is not None and seen.rank >= tip.rank:
                    return
                new = self._path.with_name(f"{self._path.name}.new")
                with new.open("w") as file:
                    file.write(tip.text())
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(self._path)
        except OSError as error:
            raise self._away(error) from error

    def _away(self, error: OSError) -> WitnessAway:
        cure = "check [billing] witness, its folder and its permissions"
        return WitnessAway(f"the witness {self._path}: {error.strerror}; {cure}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_name(f"{self._path.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
