"""One server for all workers of a run.

The first worker starts it, later ones get its address, and it ends when the last one has released it.
"""

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
def one_for_all(folder: Path, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """Yields the address that `start` gave to the first process in `folder`; the last one ends the server.

    A process that comes while the server ends starts another one. File locks are released by the kernel when
    their process dies.
    """
    folder.mkdir(exist_ok=True)
    address_file = folder / "address"
    with ExitStack() as stack:
        mutex = stack.enter_context((folder / "mutex").open("w"))
        users = stack.enter_context((folder / "users").open("w"))
        with locked(mutex):
            is_first = not address_file.exists()
            if is_first:
                address = stack.enter_context(start())
                address_file.write_text(address)
            else:
                address = address_file.read_text()
                stack.enter_context(locked(users, LOCK_SH))
        try:
            yield address
        finally:
            if is_first:
                with locked(mutex):
                    address_file.unlink()
                stack.enter_context(locked(users))  # waits for the others


@contextmanager
def locked(file: IO[str], how: int = LOCK_EX) -> Iterator[None]:
    flock(file, how)
    try:
        yield
    finally:
        # Closing the file is not enough: a child that was forked meanwhile has it open, too.
        flock(file, LOCK_UN)


@contextmanager
def shared_kafka(folder: Path) -> Iterator[Kafka]:
    """Yields a Kafka that all workers share; the mock lives within each process instead."""
    from tests.support.servers.kafka import GivenKafka, find_kafka

    started: list[Kafka] = []  # in this process

    @contextmanager
    def start() -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="gatelock-kafka-", ignore_cleanup_errors=True) as data:
            found = find_kafka(Path(data))
            try:
                started.append(found)
                yield json.dumps([found.bootstrap, found.kind] if found.real else None)
            finally:
                found.close()

    with one_for_all(folder, start) as address, ExitStack() as stack:
        given = json.loads(address)
        if not started and given is None:
            stack.enter_context(start())
        yield started[0] if started else GivenKafka(*given)
