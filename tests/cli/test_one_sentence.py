"""One sentence explains a lock, for each kind of policy: in the log, in the list and in a refusal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa

from analyzer.daemon import Daemon
from analyzer.flush.pipeline import FlushResult
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.kinds import KINDS
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.model import DrainedCounts
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import ComparedLoad, Grace, Policy, Quota, RollingQuota, Surge
from analyzer.plan.windows import Calendar, Rolling
from gatekeeper import Gate
from tests.store.flushing import ACME, a_row, now_s
from tests.support.stored_counts import tables_of

Gatelock = Callable[..., Any]

SENTENCES: list[tuple[Policy, str]] = [
    (Quota("p", 10, Calendar("month")), "10 requests per month (UTC), 12 counted"),
    (
        Quota("p", 10, Calendar("month"), grace=Grace(thousandths=100)),
        "10 requests per month (UTC) and a grace of 10%, 12 counted",
    ),
    (RollingQuota("p", 10, Rolling(86_400)), "10 requests in any 24h, 12 counted"),
    (Surge("p", 10, Rolling(60), lock_for_s=(90,)), "10 requests in any 1m, 12 counted; locked for 1m30s"),
]


def test_every_kind_has_a_sentence() -> None:
    # The lock of a share is set by the warden: tests/scenarios/test_noisy_neighbour.py reads its sentence.
    judged_by_flushes = {kind.policy for kind in KINDS.values() if not issubclass(kind.policy, ComparedLoad)}
    assert {type(policy) for policy, _ in SENTENCES} == judged_by_flushes


@pytest.mark.parametrize(("policy", "sentence"), SENTENCES)
def test_the_list_the_log_and_the_refusal_say_what_the_judgement_said(
    gatelock: Gatelock,
    engine: sa.Engine,
    migrated_url: str,
    caplog: pytest.LogCaptureFixture,
    policy: Policy,
    sentence: str,
) -> None:
    store, by_plan, at_s = SqlStore(engine, "here"), make_plan([], [], [policy]), now_s(engine)
    version = store.activate(by_plan)
    row = a_row(12, at_s)
    slots = [row._replace(width_s=5, bucket_s=at_s // 5 * 5)] if plan_sums(by_plan).slot_layouts else []
    counted = DrainedCounts([], tables_of([row]), [], slots=tables_of(slots))
    with store.transaction() as tx:
        now = tx.check_plan(by_plan, version)
        judged = tx.apply(by_plan, version, counted, now)
    with caplog.at_level(logging.INFO, "analyzer.judging.judgement_log"):
        Daemon.log_flush(cast(Daemon, SimpleNamespace()), FlushResult(counted, {}, judged, 0.0))
    assert caplog.messages[-1].endswith(f": deny by p: {sentence}")
    (listed,) = map(json.loads, gatelock("locks", "list", "--json").output.splitlines())
    assert listed["detail"] == sentence
    with Gate(migrated_url) as gate:
        assert gate.ready(5.0)
        assert gate.check(ACME).detail == sentence
