"""The second counter of audits against the first one: hostile documents, lines and repeated ids."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzer.billing.recount.read_requests import Unsupported, stored_plan
from analyzer.billing.recount.recount_differences import Frozen, differences
from analyzer.billing.recount.recounted_day import (
    CountedStretch,
    LogRecord,
    Pseudonyms,
    RecountedDay,
    RecountedLog,
)
from analyzer.counting.counter.counter import PythonCounter
from analyzer.kernel.model import Record, Records
from analyzer.plan.mapping import Condition, EventIdRule, SourceMapping, TextField
from analyzer.plan.meters import DUPLICATES, Meter
from analyzer.plan.plan import make_plan
from gatekeeper.identity import NameDigest
from tests.oracle.counter import hostile
from tests.support.depth import deeper
from tests.support.recordsets import NOW_MS

END_S = 253_339_228_800
MINUTE_MS = 60_000


def first_count(
    mapping: SourceMapping, groupings: Sequence[str], meters: Sequence[Meter], records: Records
) -> dict[tuple[str, str, str], dict[str, tuple[int, int]]]:
    """Returns what the first counter has of all days, admitted and denied, by series and meter."""
    plan = make_plan(groupings, meters, [], {"log": mapping}, (), hostile.NAMED_VALUES)
    counter = PythonCounter(plan.sources, plan.groupings, plan.meters, named_values=plan.named_values)
    assert counter.feed(records).status == "ok"
    joins = {meter.name: meter.join for meter in plan.bucket_meters}
    found: dict[tuple[str, str, str], dict[str, tuple[int, int]]] = {}
    for row in counter.drain().rows:
        of = found.setdefault((row.grouping, row.key, row.resource), {})
        join = max if joins[row.meter] == "max" else int.__add__
        before = of.get(row.meter, (0, 0))
        of[row.meter] = join(before[0], row.value), join(before[1], row.denied)
    return found


def second_count(
    mapping: SourceMapping, groupings: Sequence[str], meters: Sequence[Meter], records: Records
) -> tuple[RecountedDay, dict[str, str]]:
    """Returns what the second counter has of all days, and the joins of its meters."""
    plan = make_plan(groupings, meters, [], {"log": mapping}, (), hostile.NAMED_VALUES)
    joins = {meter.name: meter.join for meter in plan.bucket_meters}
    stored = stored_plan(plan.to_json())
    day = RecountedDay(0, END_S, plan.groupings, joins, {}, {}, Pseudonyms())
    log = RecountedLog(
        "log",
        [CountedStretch(0, stored)],
        records.next,
        is_whole=True,
        skipped=(),
        rejected=frozenset(),
        newest=stored,
    )
    day.count(log, (LogRecord(*one) for one in records.items if one.offset >= records.start))
    return day, joins


def assert_no_difference(
    mapping: SourceMapping, groupings: Sequence[str], meters: Sequence[Meter], records: Records
) -> RecountedDay:
    frozen: Frozen = first_count(mapping, groupings, meters, records)
    day, joins = second_count(mapping, groupings, meters, records)
    assert list(map(str, differences(day, frozen, joins, {}))) == []
    return day


@settings(max_examples=deeper(130))
@given(hostile.json_mappings(), hostile.wanted(), hostile.plain_records(hostile.VALUES))
def test_json_documents_are_counted_alike(
    mapping: SourceMapping, wanted: hostile.Wanted, records: Records
) -> None:
    assert_no_difference(mapping, wanted.groupings, wanted.meters, records)


@settings(max_examples=deeper(130))
@given(
    hostile.combined_mappings(),
    hostile.wanted(),
    hostile.plain_records(st.one_of(hostile.lines(), st.none(), st.binary(max_size=60))),
)
def test_combined_lines_are_counted_alike(
    mapping: SourceMapping, wanted: hostile.Wanted, records: Records
) -> None:
    assert_no_difference(mapping, wanted.groupings, wanted.meters, records)


HORIZON_MS = 8 * MINUTE_MS
REPEATS = st.lists(
    st.tuples(
        st.sampled_from([0, 1_000, MINUTE_MS, 5 * MINUTE_MS, 9 * MINUTE_MS, 20 * MINUTE_MS, -2 * MINUTE_MS]),
        st.sampled_from(["a", "b", "c", "d", ""]),
        st.sampled_from(["ann", "bob"]),
    ),
    min_size=1,
    max_size=60,
)
WITH_IDS = SourceMapping(
    caller=("user",),
    fields={"user": TextField(("user",)), "event": TextField(("event",))},
    id=EventIdRule("event", HORIZON_MS, 1_000),
)


def log_of(repeats: Sequence[tuple[int, str, str]]) -> Records:
    ms, items = NOW_MS, []
    for offset, (later_ms, event, user) in enumerate(repeats):
        ms += later_ms
        items.append(Record(offset, ms, json.dumps({"user": user, "event": event}).encode()))
    return Records.of(hostile.PART, 0, len(items), items)


@settings(max_examples=deeper(150))
@given(REPEATS, st.sampled_from([1_000, 8, 3]))
def test_repeats_are_among_those_that_the_second_counter_holds_possible(
    repeats: Sequence[tuple[int, str, str]], ids_max: int
) -> None:
    rule = EventIdRule("event", HORIZON_MS, ids_max)
    day = assert_no_difference(replace(WITH_IDS, id=rule), (), (), log_of(repeats))
    if ids_max == 1_000 and sum(max(later_ms, 0) for later_ms, _, _ in repeats) < HORIZON_MS:
        assert day.given["unknown"] == 0, "repeats within the horizon are certain"


def test_a_duplicate_that_was_counted_is_a_difference() -> None:
    repeats = [(0, "a", "ann"), (1_000, "a", "ann"), (1_000, "b", "bob")]
    frozen = first_count(WITH_IDS, (), (), log_of(repeats))
    assert frozen["caller", "user:ann", ""] == {"requests": (1, 0), DUPLICATES.name: (1, 0)}
    day, joins = second_count(WITH_IDS, (), (), log_of(repeats))
    frozen["caller", "user:ann", ""] = {"requests": (2, 0)}
    assert list(map(str, differences(day, frozen, joins, {}))) == [
        "user:ann: requests by caller: 2 in the day, 1 in the log",
        "all: duplicate records by caller: 0 in the day, 1 in the log",
    ]


def test_callers_without_a_name_may_have_less_and_all_together_may_not() -> None:
    mapping = replace(WITH_IDS, callers_max=1)
    repeats = [(0, "", "ann"), (0, "", "bob"), (0, "", "bob"), (0, "", "ann")]
    day = assert_no_difference(mapping, (), (), log_of(repeats))
    assert day.has_overflow
    frozen = {
        ("caller", "user:ann", ""): {"requests": (2, 0)},
        ("caller", "overflow:", ""): {"requests": (1, 0)},
    }
    _, joins = second_count(mapping, (), (), log_of(repeats))
    assert [str(one) for one in differences(day, frozen, joins, {})] == [
        "all: requests by caller: 3 in the day, 4 in the log"
    ]
    frozen["caller", "user:ann", ""] = {"requests": (3, 0)}
    assert [one.name for one in differences(day, frozen, joins, {})] == ["user:ann"]


def test_values_without_a_name_may_have_less_and_all_together_may_not() -> None:
    mapping = SourceMapping(
        caller=("key",), fields={"key": TextField(("key",)), "user": TextField(("user",))}, callers_max=1
    )
    records = log_of([(0, "", "large"), (0, "", "small"), (0, "", "huge")])
    day = assert_no_difference(mapping, ("caller+model", "model"), (), records)
    assert day.has_chosen_overflow("caller+model")
    assert not day.has_chosen_overflow("caller")
    frozen = first_count(mapping, ("model",), (), records)
    assert frozen["model", "overflow:", ""] == {"requests": (2, 0)}
    frozen["model", "overflow:", ""] = {"requests": (1, 0)}
    day, joins = second_count(mapping, ("model",), (), records)
    assert [one.grouping for one in differences(day, frozen, joins, {})] == ["model"]


def test_names_with_a_digest_are_counted_alike() -> None:
    digest = NameDigest("kept in a secret file")
    fields = {
        "user": TextField(("user",), digest.fingerprint),
        "tenant": TextField(("org",), digest.fingerprint),
    }
    mapping = SourceMapping(caller=("user",), fields={**fields}, deny_if=(Condition("user", ("bob",)),))
    names = [("ann", "o1"), ("bob", "o1"), ("ann", ""), ("", "o2")]
    values = [json.dumps({"user": user, "org": org}).encode() for user, org in names]
    records = Records.of(hostile.PART, 0, 4, [Record(at, NOW_MS, value) for at, value in enumerate(values)])
    plan = make_plan(["tenant"], [], [], {"log": mapping})
    counter = PythonCounter(plan.sources, plan.groupings, plan.meters, digests=[digest])
    counter.feed(records)
    frozen = {
        (row.grouping, row.key, row.resource): {row.meter: (row.value, row.denied)}
        for row in counter.drain().rows
    }
    assert frozen["caller", f"user:{digest.of('bob')}", ""] == {"requests": (0, 1)}
    joins, stored = {"requests": "sum"}, stored_plan(plan.to_json())
    secrets = {digest.fingerprint: b"kept in a secret file"}
    day = RecountedDay(0, END_S, plan.groupings, joins, {}, secrets, Pseudonyms())
    stretches = [CountedStretch(0, stored)]
    log = RecountedLog("log", stretches, 4, is_whole=True, skipped=(), rejected=frozenset(), newest=stored)
    day.count(log, (LogRecord(*one) for one in records.items))
    assert list(differences(day, frozen, joins, {})) == []
    with pytest.raises(Unsupported, match="the digest_secret of the source log is not there"):
        RecountedDay(0, END_S, plan.groupings, joins, {}, {}, Pseudonyms()).count(log, ())
