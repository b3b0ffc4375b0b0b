"""One fault of each kind: the short form of `make faults`."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults.__main__ import report
from tests.faults.fault_kinds import FAULT_KINDS
from tests.faults.fault_run import FaultRun, fault_world
from tests.support.depth import IS_DEEP
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed

FAULTS = len(FAULT_KINDS) if IS_DEEP else 5  # of kinds that the seed chooses
RECORDS = 28_000 if IS_DEEP else 10_000
pytestmark = pytest.mark.slow


def test_faults_of_different_kinds_change_no_count(seed: int, servers: ServersUsed) -> None:
    print(f'repeat with: make faults ARGS="--seed {seed} --faults {FAULTS} --records {RECORDS}"')
    try:
        with fault_world(Random(seed)) as world:
            servers.found("kafka", world.kafka.kind)
            servers.found("postgresql", world.postgres.kind)
            outcome = FaultRun(world, FAULTS, RECORDS, pause_s=(0.1, 0.6), log=print).run()
            print(report(outcome))
            assert not outcome.violations, world.fleet.log()
    except Missing as missing:
        servers.lacks("kafka", missing)
    assert sum(outcome.faults.values()) == FAULTS, "one that found nothing to disturb counts 0"
    assert len(FAULT_KINDS) >= 12
    assert outcome.locks
