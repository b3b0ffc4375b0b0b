"""`gatelock callers`, `overrides` and `exempt`: what they change, show and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.model import DrainedCounts, FactRun, Moment, StatedFacts
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import LoadShare
from analyzer.plan.windows import Rolling
from tests.store.flushing import ACME, ANN, PART, a_row, flush, locked, now_s, plan, quota
from tests.support.upkeep import Upkeep

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]
FREE = {"caller": ACME, "plan": "free", "tenant": "", "zone": "", "anchor": ""}
BY_PLAN = plan(quota(100, plan_limits=(("free", 10), ("pro", 1_000))))


@pytest.fixture(autouse=True)
def configured(migrated_url: str, configure: Configure) -> None:
    configure(f'[database]\nurl = "{migrated_url}"\n')
    engine = open_engine(migrated_url)
    store = SqlStore(engine, "here")
    store.activate(BY_PLAN)
    flush(store, BY_PLAN, [a_row(60, now_s(engine), caller) for caller in (ACME, ANN)])
    engine.dispose()


@pytest.fixture
def locks(migrated_url: str) -> Callable[[], set[str]]:
    def read() -> set[str]:
        engine = open_engine(migrated_url)
        try:
            return {key for key, _ in locked(engine)}
        finally:
            engine.dispose()

    return read


@pytest.fixture
def stated(migrated_url: str) -> Callable[[str, str], None]:
    """Has a record of ACME state a fact, and the warden apply it."""

    def state(fact: str, value: str) -> None:
        engine = open_engine(migrated_url)
        store = SqlStore(engine, "here")
        run = FactRun(value, Moment(1_795_216_000_000, 57), is_first=True)
        with store.transaction() as tx:
            now = tx.check_plan(BY_PLAN, 1)
            facts = [StatedFacts(PART, (fact,), {ACME: [run]}, {})]
            tx.apply(BY_PLAN, 1, DrainedCounts([], [], [], facts=facts), now)
        assert Upkeep(engine, new_mark).apply_facts().rows == 1
        engine.dispose()

    return state


def test_show_says_where_each_fact_comes_from(
    gatelock: Gatelock, locks: Callable[[], set[str]], stated: Callable[[str, str], None]
) -> None:
    stated("plan", "free")
    assert locks() == {ACME}
    rows(gatelock("callers", "set", ACME, "--tenant", "shop", "--json"))
    stated("zone", "Mars/Phobos")
    (shown,) = rows(gatelock("callers", "list", ACME, "--json"))
    since = "2026-11-20T23:06:40Z"
    record = {"from": "record", "topic": "topic-id", "partition": 0, "offset": 57, "since": since}
    assert shown["origins"] == {"plan": record, "tenant": {"from": "command"}, "zone": record}
    printed = gatelock("callers", "list", ACME).output
    assert "plan free: topic-id[0], offset 57, 2026-11-20T23:06:40Z" in printed
    assert "zone Mars/Phobos (unknown here, so it has no effect): topic-id[0]" in printed
    assert "tenant shop: set by command" in printed
    assert rows(gatelock("callers", "list", "--plan", "free", "--json"))[0]["caller"] == ACME


def rows(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_callers_plan_is_set_shown_and_judged(gatelock: Gatelock, locks: Callable[[], set[str]]) -> None:
    (done,) = rows(gatelock("callers", "set", ACME, "--plan", "free", "--reason", "sold", "--json"))
    assert done.items() >= (FREE | {"locked": 1, "freed": 0, "notices": 0}).items()
    (line,) = done["judged"]
    assert line.startswith(f"locked {ACME} from ")
    assert line.endswith(": deny by daily: 10 requests per month (UTC), 60 counted")
    assert locks() == {ACME}
    printed = gatelock("callers", "set", ACME, "--tenant", "shop").output
    assert "plan free, tenant shop, zone (none), anchor (none); 0 locked" in printed
    assert rows(gatelock("callers", "list", "--json")) == [FREE | {"tenant": "shop"}]
    assert rows(gatelock("callers", "list", "--plan", "pro", "--json")) == []
    (shown,) = rows(gatelock("callers", "list", ACME, "--json"))
    assert shown["limits"] == [{"policy": "daily", "limit": 10, "stated": 100, "exempt": False}]
    shown_row = gatelock("callers", "list", ACME).output.splitlines()[-1]
    assert shown_row.split() == ["daily", "10", "100"]
    assert {(one["act"], one["about"]) for one in rows(gatelock("upkeep", "events", "list", "--json"))} >= {
        ("callers set", f"{ACME}: plan free")
    }


def test_a_callers_zone_and_anchor_are_set_and_shown(gatelock: Gatelock) -> None:
    own = {"zone": "Europe/Berlin", "anchor": "2026-01-31"}
    (done,) = rows(
        gatelock("callers", "set", ANN, "--zone", own["zone"], "--anchor", own["anchor"], "--json")
    )
    assert done.items() >= own.items()
    gatelock("callers", "set", ANN, "--plan", "pro")
    (shown,) = rows(gatelock("callers", "list", ANN, "--json"))
    assert shown.items() >= (own | {"caller": ANN, "plan": "pro"}).items()
    assert "zone Europe/Berlin, anchor 2026-01-31" in gatelock("callers", "list", ANN).output
    (done,) = rows(gatelock("callers", "set", ANN, "--zone", "-", "--json"))
    assert (done["zone"], done["anchor"]) == ("", own["anchor"])


def test_a_file_sets_what_it_states(
    gatelock: Gatelock, tmp_path: Path, locks: Callable[[], set[str]]
) -> None:
    gatelock("callers", "set", ACME, "--tenant", "shop")
    file = tmp_path / "callers.csv"
    file.write_text(
        f"caller,plan\n{ACME},free\n{ANN},pro\n" + "".join(f"user:{n},free\n" for n in range(1_500))
    )
    (done,) = rows(gatelock("callers", "set", "--file", str(file), "--json"))
    assert done.items() >= {"callers": 1_502, "locked": 1, "freed": 0}.items()
    assert locks() == {ACME}
    known = rows(gatelock("callers", "list", "--json"))
    assert len(known) == 1_502
    assert FREE | {"tenant": "shop"} in known


@pytest.mark.usefixtures("locks")
def test_a_first_line_in_another_encoding_is_wrong_usage(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_bytes(b"caller,pl\xe4n\n")
    refused = gatelock("callers", "set", "--file", "facts.csv")
    assert (refused.exit_code, "facts.csv, line 0: 'utf-8' codec" in refused.stderr) == (2, True), (
        refused.stderr
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("caller,plan\nacme,free\n", "line 2: 'acme' has no kind of name"),
        ("name,plan\n", "the first line must name the columns"),
        (f"caller,plan\n{ACME},free,x\n", "line 2: another number of columns"),
        (f"caller,plan\n{ACME},a b\n", "'a b' is not the name of a plan"),
        (f"caller,zone\n{ACME},Europe/Atlantis\n", "'Europe/Atlantis' is not a time zone"),
        (f"caller,anchor\n{ACME},31.1.2026\n", "'31.1.2026' is not a day: write it as 2026-01-31"),
        (f"caller,anchor\n{ACME},2026-02-30\n", "'2026-02-30' is not a day"),
        (f"caller,plan\n{ACME},free\n{ACME},pro\n", f"line 3: {ACME} is in the file twice"),
    ],
)
def test_a_wrong_file_changes_nothing(gatelock: Gatelock, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "callers.csv"
    file.write_text(text)
    result = gatelock("callers", "set", "--file", str(file))
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert rows(gatelock("callers", "list", "--json")) == []


def test_an_override_is_added_listed_and_ended(gatelock: Gatelock, locks: Callable[[], set[str]]) -> None:
    add = ("callers", "limit", ACME, "--amount", "50", "--for", "30d", "--reason", "abuse")
    (added,) = rows(gatelock(*add, "--json"))
    assert (added["policy"], added["change"], added["state"], added["locked"]) == ("daily", 50, "in force", 1)
    assert locks() == {ACME}
    (listed,) = rows(gatelock("callers", "list", "--overrides", "--json"))
    assert listed.items() <= added.items()
    assert "abuse" in gatelock("callers", "list", "--overrides").output
    ended = gatelock("callers", "end", added["id"])
    assert f"ended: caller {ACME}, policy daily, limit 50; 0 locked, 1 freed" in ended.output
    assert locks() == set()
    assert rows(gatelock("callers", "list", "--overrides", "--json")) == []
    assert rows(gatelock("callers", "list", "--overrides", "--all", "--json"))[0]["state"] == "ended"
    assert gatelock("callers", "end", added["id"]).exit_code == 1


def test_amounts_are_shown_in_the_unit_of_the_meter(gatelock: Gatelock, migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    share = LoadShare("neighbour", 400_000, 100, Rolling(60), per="caller+resource", release=250_000)
    SqlStore(engine, "here").activate(plan(quota(2 << 30, unit="bytes"), share))
    engine.dispose()
    reason = ("--reason", "asked")
    added = gatelock("callers", "limit", ACME, "--amount", "3 GiB", "--policy", "daily", *reason)
    assert "limit 3 GiB, in force" in added.output
    assert (
        "1 kB more"
        in gatelock("callers", "limit", ACME, "--amount", "+1 kB", "--policy", "daily", *reason).output
    )
    listed = gatelock("callers", "list", "--overrides").output
    assert "3 GiB" in listed
    assert "+1 kB" in listed
    shown = gatelock("callers", "list", ACME).output
    assert "2 GiB" in shown
    assert "neighbour" not in shown, "a share limits no single caller"


def test_a_share_takes_no_amounts_for_single_callers(gatelock: Gatelock, migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    share = LoadShare("neighbour", 400_000, 100, Rolling(60), per="caller+resource", release=250_000)
    SqlStore(engine, "here").activate(make_plan([], [], [share]))
    engine.dispose()
    for command in (
        ("callers", "limit", ACME, "--amount", "5", "--reason", "asked"),
        ("callers", "limit", ACME, "--amount", "+5", "--reason", "asked"),
    ):
        result = gatelock(*command)
        assert result.exit_code == 2
        assert "neighbour is a share, without limits of single callers" in result.output


def test_a_grant_is_added_to_the_limit(gatelock: Gatelock, locks: Callable[[], set[str]]) -> None:
    gatelock("callers", "set", ACME, "--plan", "free")
    (done,) = rows(
        gatelock(
            *("callers", "limit", ACME, "--amount", "+50_000"),
            *("--until", "2999-01-01", "--reason", "sold", "--json"),
        )
    )
    assert (done["change"], done["until"][:10], done["freed"]) == ("+50000", "2999-01-01", 1)
    assert locks() == set()
    assert rows(gatelock("callers", "list", ACME, "--json"))[0]["limits"][0]["limit"] == 50_010


def test_an_exemption_frees(gatelock: Gatelock, locks: Callable[[], set[str]]) -> None:
    gatelock("callers", "set", ACME, "--plan", "free")
    (done,) = rows(gatelock("callers", "allow", ACME, "--reason", "ours", "--json"))
    assert (done["change"], done["policy"], done["freed"]) == ("exempt", None, 1)
    assert rows(gatelock("callers", "list", "--overrides", "--json"))[0]["name"] == ACME
    assert "exempt" in gatelock("callers", "list", ACME).output
    assert gatelock("callers", "end", done["id"]).exit_code == 0
    assert locks() == {ACME}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("callers", "set", "acne", "--plan", "pro"), "did you mean api_key:acme?"),
        (("callers", "list", ACME, "--overrides"), "--overrides: does not work with CALLER"),
        (("callers", "list", "--overrides", "--plan", "pro"), "--plan: does not work with --overrides"),
        (("callers", "list", "--all"), "--all: works only with --overrides"),
        (("callers", "set", ACME), "give CALLER and --plan, --tenant, --zone or --anchor; or --file alone"),
        (("callers", "limit", "--amount", "5", "--reason", "x"), "name one of CALLER and --tenant"),
        (
            ("callers", "limit", ACME, "--amount", "5", "--reason", "x")
            + ("--from", "2999-02-01", "--until", "2999-01-01"),
            "--until: 2999-01-01 is not later than --from 2999-02-01: write a later end",
        ),
        (
            ("callers", "allow", ACME, "--reason", "x", "--from", "2999-02-01", "--for", "1h"),
            "--for: counted from now is not later than --from 2999-02-01",
        ),
        (("callers", "limit", ACME, "--amount", "5 apples", "--reason", "x"), "whole number"),
        (("callers", "limit", ACME, "--amount", "1h", "--reason", "x"), "whole numbers"),
        (("callers", "limit", ACME, "--amount", "5", "--reason", " "), "write a reason"),
        (
            ("callers", "limit", ACME, "--amount", "5", "--reason", "x", "--policy", "dayly"),
            'did you mean "daily"',
        ),
        (
            ("callers", "limit", ACME, "--amount", "5", "--reason", "x", "--until", "2020-01-01"),
            "is over",
        ),
        (("callers", "allow", "--address", "10.0.0.1/8", "--reason", "x"), "write 192.0.2.7, 203.0.113.0/24"),
        (
            ("callers", "allow", ACME, "--address", "10.0.0.0/8", "--reason", "x"),
            "name one of CALLER, --tenant",
        ),
    ],
)
def test_wrong_usage_is_refused(gatelock: Gatelock, words: tuple[str, ...], message: str) -> None:
    result = gatelock(*words)
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_a_forgotten_caller_has_a_pseudonym_everywhere(
    gatelock: Gatelock, locks: Callable[[], set[str]]
) -> None:
    gatelock("callers", "set", ACME, "--plan", "free", "--reason", "a test")
    gatelock("callers", "set", "api_key:bob", "--plan", "free", "--reason", "a branch of acme")
    assert locks() == {ACME}
    shown = gatelock("callers", "forget", ACME, "--reason", "left", "--dry-run").output
    assert "it is replaced in 3 texts: " in shown, shown
    assert "events.why (a branch of acme)" in shown
    done = rows(gatelock("callers", "forget", ACME, "--reason", f"{ACME} has left", "--json", "--yes"))
    [pseudonym] = {row["pseudonym"] for row in done}
    assert [row["is_new"] for row in done] == [True]
    assert ACME not in {*locks()}
    commands = (("usage",), ("upkeep", "events", "list"), ("callers", "list"), ("locks", "list"))
    for command in commands:
        assert "acme" not in gatelock(*command).output, command
    assert pseudonym in gatelock("usage").output
    again = gatelock("callers", "forget", ACME, "--reason", "again", "--yes")
    assert (again.exit_code, again.output) == (
        0,
        f"the caller is {pseudonym} from now on; 0 rows had its name\n",
    )
    assert gatelock("callers", "forget", ACME, "--reason", " ").exit_code == 2
