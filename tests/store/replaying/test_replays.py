"""A log that was counted by a wrong mapping is replayed, and then as if it had been counted right."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.billing.days.day_rows import add_day
from analyzer.build import build_replay
from analyzer.config.settings import load
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.errors import ReplayLost, ReplayRefused
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.replay_tables import replayed_counts
from analyzer.kernel.tables.schema import buckets, events, locks, offsets
from analyzer.maintenance.roll_up import widen
from analyzer.replay import generations, replay_run, swap
from analyzer.replay.twin_counter import LedgerChange, ReplayedCounts
from tests.support.depth import IS_DEEP, deeper
from tests.support.fresh_databases import copy_sqlite
from tests.support.replayed_logs import AFTER, BEFORE, Event, FileInstallation, event, write_log
from tests.support.step_faults import Killed, watch_steps

DAY_S, MINUTE_S = 86_400, 60
IDS = 'id = "id"\nid_horizon = "1h"'


def midday_s(days_ago: int = 1) -> int:
    now_s = int(time.time())
    return now_s - now_s % DAY_S - days_ago * DAY_S + DAY_S // 2


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "web.log"


@pytest.fixture
def live(tmp_path: Path, migrated_url: str, log: Path) -> Iterator[FileInstallation]:
    here = FileInstallation(tmp_path / "live", migrated_url, log)
    yield here
    here.close()


@pytest.fixture
def plain(tmp_path: Path, sqlite_template: Path, log: Path) -> Iterator[FileInstallation]:
    """An installation that has counted right from the start."""
    here = FileInstallation(tmp_path / "plain", copy_sqlite(sqlite_template, tmp_path / "plain.db"), log)
    yield here
    here.close()


def some_events(at_s: int) -> Sequence[Event | str]:
    return [
        *(event(at_s + n, f"o{n % 3}", f"a{n % 5}", bytes=n) for n in range(40)),
        "{",
        event(at_s + 60, ["no name"], "a1"),
        {"at": at_s + 90, "owner": "o1", "agent": "a1"},  # without the time of the first mapping
        event(at_s - 3 * DAY_S, "o1", "a9", at=at_s - 2 * DAY_S),
        event(at_s, "same", "same", path="/b"),
    ]


def test_a_swap_leaves_what_a_count_from_the_start_leaves(
    live: FileInstallation, plain: FileInstallation, log: Path
) -> None:
    write_log(log, some_events(midday_s()))
    live.count(BEFORE)
    plain.count(AFTER)
    before = live.stored()
    live.put_in_force(AFTER)
    number = live.replay()
    assert live.stored() == before, "nothing changes before the swap"
    compared = live.gatelock("upkeep", "replay", "list", str(number), "--json", codes=(1,))
    [found] = [json.loads(line) for line in compared.stdout.splitlines()]
    by_caller = {one["key"]: one["difference"] for one in found["amounts"] if one["meter"] == "requests"}
    assert by_caller["api_key:o0"] < 0 < by_caller["api_key:a0"]
    assert "api_key:same" not in by_caller
    live.gatelock("upkeep", "replay", "swap", str(number), "--reason", "test", "--dry-run")
    assert live.stored() == before
    live.gatelock("upkeep", "replay", "swap", str(number), "--reason", "wrong field", "--yes")
    assert live.stored() == plain.stored()
    # Locks stay as they are, so only these may differ from what the totals judge.
    audited = live.gatelock("billing", "audit", "--all", codes=(0, 1)).stdout
    differing = [line for line in audited.splitlines() if "NOT EQUAL" in line]
    assert all("is locked, and must not be" in line for line in differing), audited
    assert live.replay("--compare") == number + 1, "by now it was counted by this plan"
    with reading(live.engine) as db:
        assert not db.execute(sa.select(replayed_counts)).all()
        acts = db.execute(sa.select(events.c.about, events.c.why).where(events.c.act == swap.SWAPPED)).all()
    assert acts == [(f"replay {number}: web: {log}", "wrong field")]


@settings(max_examples=deeper(6), deadline=None)
@given(
    seeds=st.lists(
        st.tuples(
            st.integers(0, 3 * DAY_S), st.integers(0, 4), st.integers(0, 4), st.integers(0, 6), st.booleans()
        ),
        min_size=1,
        max_size=40,
    ),
    ids=st.booleans(),
    bound=st.integers(1, 12),
)
def test_a_replay_of_any_log_equals_a_count_from_the_start(
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
    seeds: list[tuple[int, int, int, int, bool]],
    ids: bool,
    bound: int,
) -> None:
    """With late, doubled and unreadable records; stored in parts of any size."""
    folder, at_s = tmp_path_factory.mktemp("replayed"), midday_s(4)
    lines: list[Event | str] = []
    for number, (ago_s, owner, agent, kind, is_late) in enumerate(seeds):
        one = event(at_s + number, f"o{owner}", f"a{agent}", at=at_s + ago_s % 7_200 - is_late * DAY_S)
        names = {"id": f"id{ago_s % 6}", "path": "/b" if ago_s % 2 else "/a", "bytes": ago_s % 5}
        odd = {0: "{", 1: {**one, "at": "?"}, 2: {**one, "owner": 7.5}}
        lines.append(odd.get(kind, {**one, **names}))
    write_log(folder / "web.log", lines)
    first, second = BEFORE, {**AFTER, "extra": IDS if ids else ""}
    found = []
    for name in ("live", "plain"):
        url = copy_sqlite(sqlite_template, folder / f"{name}.db")
        here = FileInstallation(folder / name, url, folder / "web.log")
        try:
            if name == "live":
                here.count(first)
                here.put_in_force(second)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(replay_run, "STORED_EVERY", bound)
                    here.replay("--swap", "--reason", "test", "--yes")
            else:
                here.count(second)
            found.append(here.stored())
        finally:
            here.close()
    assert found[0] == found[1]


def test_a_closed_day_is_corrected_by_adjustments_alone(
    live: FileInstallation, plain: FileInstallation, log: Path
) -> None:
    at_s = midday_s(2)
    write_log(log, some_events(at_s))
    live.count(BEFORE)
    plain.count(AFTER)
    date = time.strftime("%Y-%m-%d", time.gmtime(at_s))
    with writing(live.engine) as db:
        add_day(db, "UTC", int(time.time()))  # the open day
    live.gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    frozen = live.gatelock("billing", "report", "day", date).stdout
    live.put_in_force(AFTER)
    number = live.replay("--compare", "--swap", "--reason", "wrong field", "--yes")
    assert live.gatelock("billing", "report", "day", date).stdout == frozen, "frozen rows stay"
    assert live.stored() == plain.stored()
    corrections = live.gatelock("billing", "report", "corrections", "today", "--format", "jsonl").stdout
    sums: dict[str, int] = {}
    for line in [*_rows(live, "day", date), *map(json.loads, corrections.splitlines())]:
        if line["meter"] == "requests" and line.get("day", date) == date:
            sums[_name(line)] = sums.get(_name(line), 0) + int(line["value"])
    recount = {
        row["caller"]: int(row["value"]) for row in _rows(plain, "day", date) if row["meter"] == "requests"
    }
    assert {name: value for name, value in sums.items() if value} == recount
    live.gatelock("billing", "audit", "--day", date)
    shown = live.gatelock("billing", "days", "list", date).stdout
    assert f"replay {number}" in shown
    assert "wrong field" in shown
    live.gatelock("billing", "audit", "--day", date, "--against-kafka")


def _name(line: dict[str, str]) -> str:
    return line.get("caller") or line["name"]


def _rows(here: FileInstallation, *report: str) -> list[dict[str, str]]:
    text = here.gatelock("billing", "report", *report, "--format", "jsonl").stdout
    return [json.loads(line) for line in text.splitlines()]


def test_minutes_that_were_rolled_up_change_in_their_quarters(
    live: FileInstallation, plain: FileInstallation, log: Path
) -> None:
    write_log(log, some_events(midday_s()))
    live.count(BEFORE)
    plain.count(AFTER)
    for here in (live, plain):
        with writing(here.engine) as db:
            while widen(db, 60, 900, 0, 10_000):
                pass
    live.put_in_force(AFTER)
    live.replay("--swap", "--reason", "test", "--yes")
    with writing(live.engine) as db:  # new series come as minutes
        while widen(db, 60, 900, 0, 10_000):
            pass
    assert live.stored()["counts"] == plain.stored()["counts"]


def test_counts_that_are_not_there_cannot_be_taken_back(live: FileInstallation, log: Path) -> None:
    write_log(log, some_events(midday_s()))
    live.count(BEFORE)
    live.put_in_force(AFTER)
    number = live.replay()
    with writing(live.engine) as db:
        db.execute(sa.update(buckets).values(value_0=0))
    before = live.stored()
    with pytest.raises(ReplayRefused, match="less is stored of it"):
        swap.swap(live.engine, number, "ann", "test")
    assert live.stored() == before


def test_a_generation_is_refused_once_something_else_has_changed(live: FileInstallation, log: Path) -> None:
    write_log(log, some_events(midday_s()))
    live.count(BEFORE)
    live.put_in_force(AFTER)
    first, second = live.replay(), live.replay()
    with pytest.raises(ReplayRefused, match="rows would change"):
        swap.swap(live.engine, first, "ann", "test", rows_max=3)
    swap.swap(live.engine, first, "ann", "test")
    with pytest.raises(ReplayRefused, match="counted again meanwhile"):
        swap.swap(live.engine, second, "ann", "test")
    with pytest.raises(ReplayRefused, match="its counts are in force already"):
        swap.swap(live.engine, first, "ann", "test")
    generations.drop(live.engine, second, "ann", "test")
    with pytest.raises(ReplayRefused, match="swapped in"):
        generations.drop(live.engine, first, "ann", "test")
    third = live.replay()
    live.put_in_force(BEFORE)
    with pytest.raises(ReplayRefused, match="another plan is in force"):
        swap.swap(live.engine, third, "ann", "test")


def test_a_record_that_was_retried_stays_as_it_is(live: FileInstallation, log: Path) -> None:
    at_s = midday_s()
    write_log(log, [event(at_s, "o1", "a1"), {"at": at_s, "owner": "o2", "agent": "a2"}])
    live.count(BEFORE)
    live.put_in_force(AFTER)
    live.gatelock("upkeep", "rejects", "retry", "--topic", str(log), "--why", "test")
    before = live.stored()
    live.replay("--swap", "--reason", "test", "--yes")
    after = live.stored()
    assert (after["ledger"], after["rejected"]) == (before["ledger"], set())
    assert {(row.key, row.value) for row in after["counts"] if row.meter == "requests"} == {  # type: ignore[attr-defined] # rows
        ("api_key:a1", 1),
        ("api_key:a2", 1),
    }


def test_a_forgotten_caller_stays_forgotten(live: FileInstallation, log: Path) -> None:
    write_log(log, some_events(midday_s()))
    live.count(BEFORE)
    number = _counted_replay_of(live)
    live.gatelock("callers", "forget", "api_key:same", "--reason", "asked for", "--yes")
    with reading(live.engine) as db:
        assert not db.execute(sa.select(replayed_counts)).all(), "it has the name"
    assert generations.stored(live.engine, number).state == "dropped"
    live.replay("--swap", "--reason", "test", "--yes", "--judge")
    counts = live.stored()["counts"]
    names = {row.key for row in counts}  # type: ignore[attr-defined] # rows
    assert "api_key:same" not in names
    assert sum(name.startswith("forgotten:") for name in names) == 1
    live.gatelock("billing", "audit", "--all")


def _counted_replay_of(live: FileInstallation) -> int:
    live.put_in_force(AFTER)
    return live.replay()


def test_locks_change_only_when_asked_for(live: FileInstallation, log: Path) -> None:
    now_s = int(time.time())
    write_log(log, [event(now_s, "o1", "a1") for _ in range(6)])
    live.count(BEFORE)
    assert _locked(live) == {"api_key:o1"}
    live.put_in_force(AFTER)
    number = live.replay()
    swap.swap(live.engine, number, "ann", "test")
    assert _locked(live) == {"api_key:o1"}
    live.put_in_force(BEFORE)
    live.replay("--swap", "--reason", "back", "--yes")
    live.put_in_force(AFTER)
    live.replay("--swap", "--reason", "again", "--yes", "--judge")
    live.gatelock("upkeep", "import", str(log), "--source", "web")  # runs the warden
    assert _locked(live) == {"api_key:a1"}
    live.gatelock("billing", "audit", "--all")


def _locked(live: FileInstallation) -> set[str]:
    with reading(live.engine) as db:
        return set(db.execute(sa.select(locks.c.key)).scalars())


def test_only_one_process_counts_a_replay(live: FileInstallation, log: Path) -> None:
    write_log(log, some_events(midday_s()))
    live.count(BEFORE)
    number = _counted_replay_of(live)
    [position] = generations.stored(live.engine, number).positions
    again = ReplayedCounts(0, position.next, [], LedgerChange(), [], [], [], 0)
    with pytest.raises(ReplayLost):
        generations.store(live.engine, number, position.range.part, again)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["other.log", "--source", "web"], "other.log: there is no such file"),
        (["other.log"], "other.log: there is no such file"),
        (["web.log", "--source", "wbe"], "no such name"),
        (["web.log", "--source", "web", "--from", "1d"], "are for topics"),
    ],
)
def test_a_log_that_was_not_counted_is_refused_with_a_sentence(
    live: FileInstallation, log: Path, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(log, some_events(midday_s()))
    monkeypatch.chdir(log.parent)
    live.count(BEFORE)
    result = live.gatelock("upkeep", "replay", "start", *arguments, codes=(2,))
    assert sentence in result.output
    with reading(live.engine) as db:
        assert db.execute(sa.select(offsets.c.next)).scalar_one() == log.stat().st_size
        assert not db.execute(sa.select(days.c.id)).all()


def test_records_that_come_meanwhile_are_counted_once(
    live: FileInstallation, plain: FileInstallation, log: Path
) -> None:
    """By the plan in force, after what is replayed, into the same minutes."""
    at_s = midday_s()
    write_log(log, some_events(at_s))
    live.count(BEFORE)
    live.put_in_force(AFTER)
    number = live.replay()
    more = [event(at_s + n, "o1", f"a{n % 3}") for n in range(20)]
    write_log(log, [*some_events(at_s), *more])
    live.count(AFTER)
    swap.swap(live.engine, number, "ann", "test")
    plain.count(AFTER)
    assert live.stored() == plain.stored()


def test_a_replay_that_is_killed_at_any_step_counts_once(
    sqlite_template: Path, tmp_path: Path, log: Path
) -> None:
    """Of counting and swapping; then it is continued."""
    at_s = midday_s()
    write_log(log, some_events(at_s))
    first = FileInstallation(tmp_path / "first", copy_sqlite(sqlite_template, tmp_path / "first.db"), log)
    first.count(BEFORE)
    first.put_in_force(AFTER)
    first.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_run, "STORED_EVERY", 12)
        calm, steps = _replayed(tmp_path, log, kill_at=-1)
        assert calm["rejected"]
        for at in range(0, len(steps), 1 if IS_DEEP else 4):
            assert _replayed(tmp_path, log, kill_at=at)[0] == calm, steps[at]


def _replayed(tmp_path: Path, log: Path, kill_at: int) -> tuple[dict[str, object], list[str]]:
    """Returns what is stored after a replay that was killed at a step and continued, and the steps."""
    folder = tmp_path / f"killed{kill_at}"
    folder.mkdir()
    here = FileInstallation(folder, copy_sqlite(tmp_path / "first.db", folder / "killed.db"), log)
    here.configure(AFTER)
    steps: list[str] = []

    def step(label: str) -> None:
        steps.append(label)
        if len(steps) == kill_at + 1:
            raise Killed

    try:
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            watch_steps(patch, here.engine, step)
            _continue(here, log)
        _continue(here, log)
        return here.stored(), steps
    finally:
        here.close()


def _continue(here: FileInstallation, log: Path) -> None:
    """Does what is left of a replay of the log."""
    job = build_replay(load(here.file), here.engine, "web")
    known = generations.all_stored(here.engine)
    found = known[0] if known else job.begin_files([log], "ann")
    if found.state == "counting":
        found = job.run(found, lambda *_: None)
    if found.state == "counted":
        swap.swap(here.engine, found.id, "ann", "test")


@pytest.mark.parametrize("left_out", ["_change_ledger", "change_totals", "add_days", "_change_rejected"])
def test_a_swap_that_leaves_a_step_out_is_found(
    sqlite_template: Path, tmp_path: Path, log: Path, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = int(time.time())  # in an open window
    write_log(log, [*(event(at_s - n, "o1", f"a{n}") for n in range(3)), {"at": at_s, "agent": "a1"}])
    found = []
    for name, mapping in (("live", BEFORE), ("plain", AFTER)):
        here = FileInstallation(tmp_path / name, copy_sqlite(sqlite_template, tmp_path / f"{name}.db"), log)
        here.count(mapping)
        if name == "live":
            here.put_in_force(AFTER)
            with monkeypatch.context() as patch:
                patch.setattr(swap, left_out, lambda *_arguments: None)
                here.replay("--swap", "--reason", "test", "--yes")
        found.append(here.stored())
        here.close()
    assert found[0] != found[1]
