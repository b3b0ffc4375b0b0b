"""One fault of each kind, one upon another: the short form of `make faults`."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults.__main__ import report
from tests.faults.fault_kinds import KINDS
from tests.faults.fault_run import Story, a_world
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed

RECORDS = 28_000
pytestmark = pytest.mark.slow


def test_one_fault_of_each_kind_is_not_seen_in_the_end(seed: int, servers: ServersUsed) -> None:
    print(f'the same again: make faults ARGS="--seed {seed} --faults {len(KINDS)} --records {RECORDS}"')
    try:
        with a_world(Random(seed)) as world:
            servers.found("kafka", world.kafka.kind)
            servers.found("postgresql", world.postgres.kind)
            outcome = Story(world, len(KINDS), RECORDS, pause_s=(0.1, 0.6), say=print).run()
            print(report(outcome))
            assert not outcome.wrong, world.fleet.log()
    except Missing as missing:
        servers.lacks("kafka", missing)
    assert len(outcome.faults) == len(KINDS) >= 12
    assert outcome.locks
