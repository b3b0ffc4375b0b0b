"""The threads of transactions, and the databases in which they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from tests.interleavings.actors import SimulatedClock, Transactions
from tests.interleavings.stage import Stage
from tests.interleavings.worlds import World

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres


@pytest.fixture(scope="session")
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(scope="session")
def stage(postgres: Postgres, postgres_template: str, clock: SimulatedClock) -> Iterator[Stage]:
    made = Stage(postgres, postgres_template, clock)
    yield made
    made.discard()


@pytest.fixture
def transactions(stage: Stage) -> Iterator[Transactions]:
    """The actors, all of them idle. Those that a test leaves in a transaction are ended with it."""
    yield stage.transactions
    stage.tidy()


@pytest.fixture
def rewritten(transactions: Transactions) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Replaces texts of statements until the test ends."""
    yield transactions.mutate
    transactions.mutate({})


@pytest.fixture
def world(transactions: Transactions, stage: Stage, request: pytest.FixtureRequest) -> World:
    """The world that a test names, "usual" unless it does. Ends the run if none can be made."""
    try:
        return stage.world(getattr(request, "param", "usual"))
    except Exception as error:
        request.session.shouldstop = f"a world of the interleavings cannot be made: {error}"
        raise
