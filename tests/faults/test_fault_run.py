"""One fault of each kind: the short form of `make faults`."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults.__main__ import report
from tests.faults.fault_kinds import FAULT_KINDS
from tests.faults.fault_run import FaultRun, fault_world
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed

RECORDS = 28_000
pytestmark = pytest.mark.slow


def test_one_fault_of_each_kind_changes_no_count(seed: int, servers: ServersUsed) -> None:
    print(f'repeat with: make faults ARGS="--seed {seed} --faults {len(FAULT_KINDS)} --records {RECORDS}"')
    try:
        with fault_world(Random(seed)) as world:
            servers.found("kafka", world.kafka.kind)
            servers.found("postgresql", world.postgres.kind)
            outcome = FaultRun(world, len(FAULT_KINDS), RECORDS, pause_s=(0.1, 0.6), log=print).run()
            print(report(outcome))
            assert not outcome.violations, world.fleet.log()
    except Missing as missing:
        servers.lacks("kafka", missing)
    assert len(outcome.faults) == len(FAULT_KINDS) >= 12
    assert outcome.locks
