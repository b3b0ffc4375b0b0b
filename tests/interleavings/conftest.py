"""The threads of transactions, and the databases in which they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from tests.interleavings.actors import SimulatedClock, Transactions
from tests.interleavings.worlds import World

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres


@pytest.fixture(scope="session")
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(scope="session")
def interleaved_url(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    url = postgres.new_database(template=postgres_template)
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def transactions(interleaved_url: str, clock: SimulatedClock) -> Iterator[Transactions]:
    found = Transactions(interleaved_url, clock)
    yield found
    found.close()


@pytest.fixture
def rewritten(transactions: Transactions) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Replaces texts of statements until the test ends."""
    yield transactions.mutate
    transactions.mutate({})


@pytest.fixture(scope="session")
def worlds(interleaved_url: str, clock: SimulatedClock) -> Iterator[Callable[[str], World]]:
    """Returns a world by its name; the one before it is closed, because they share a database."""
    made: list[World] = []

    def world_of(name: str) -> World:
        if not made or made[-1].name != name:
            if made:
                made.pop().close()
            made.append(World(interleaved_url, clock, name))
        return made[-1]

    yield world_of
    for world in made:
        world.close()


@pytest.fixture
def world(worlds: Callable[[str], World], request: pytest.FixtureRequest) -> World:
    """The world that a test names, "usual" unless it does."""
    return worlds(getattr(request, "param", "usual"))
