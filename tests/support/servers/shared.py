"""One server for all processes that share the tests: whoever asks first starts it, whoever asks later is told
where it is, and it ends when all have let go."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.servers.kafka import Kafka


@contextmanager
def one_for_all(place: Path, started: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """What `started` told the first who asked at `place`; it goes on until nobody is there any more.

    Who asks while it ends starts another. The kernel lets go of what a dead process held.
    """
    place.mkdir(exist_ok=True)
    told = place / "told"
    with (place / "turn").open("w") as turn, (place / "guests").open("w") as guests, ExitStack() as held:
        with locked(turn):
            if host := not told.exists():
                said = held.enter_context(started())
                told.write_text(said)
            else:
                said = told.read_text()
                held.enter_context(locked(guests, LOCK_SH))
        try:
            yield said
        finally:
            if host:
                with locked(turn):
                    told.unlink()
                held.enter_context(locked(guests))


@contextmanager
def locked(file: IO[str], how: int = LOCK_EX) -> Iterator[None]:
    flock(file, how)
    try:
        yield
    finally:
        flock(file, LOCK_UN)  # not by closing: a child that was forked meanwhile has it open, too


@contextmanager
def kafka_of_all(place: Path) -> Iterator[Kafka]:
    """A Kafka. The mock lives in the process that asks, and is its own."""
    from tests.support.servers.kafka import GivenKafka, find_kafka

    mine: list[Kafka] = []

    @contextmanager
    def started() -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="gatelock-kafka-", ignore_cleanup_errors=True) as folder:
            found = find_kafka(Path(folder))
            try:
                mine.append(found)
                yield json.dumps([found.bootstrap, found.kind] if found.real else None)
            finally:
                found.close()

    with one_for_all(place, started) as said, ExitStack() as held:
        at = json.loads(said)
        if not mine and at is None:
            held.enter_context(started())
        yield mine[0] if mine else GivenKafka(*at)
