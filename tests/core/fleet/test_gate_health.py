"""The problems of a gate by its report, and the causes of callers that the log does not know."""

from __future__ import annotations

import re
from typing import Any

import pytest

from analyzer.gates.fleet_summary import fleet_summary
from analyzer.gates.gate_health import (
    BEHIND_S,
    SILENT_S,
    SKEW_S,
    GateHealth,
    gate_problems,
    hits_by_lock,
    known_share,
    living_gates,
)
from analyzer.gates.unasked_values import newly_unasked, unasked_values
from analyzer.gates.unknown_callers import BEHIND_MAX_S, LogKnowledge, cause, spellings
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from gatekeeper.model import Cursor, GateStatus, LockHits, LockKey

ANN, BOB = "user:ann", "user:bob"


def a_gate(
    instance: str = "host:1:ab",
    *,
    report_age_s: float = 1.0,
    missed_s: float = 0.0,
    is_foreign: bool = False,
    **fields: Any,
) -> GateHealth:
    healthy: dict[str, Any] = {
        "number": 1, "application": "shop", "library": "0.1.0", "at": Cursor(7, "m"), "age": 0.4,
        "locks": (), "more": (0, 0), "callers": (),
    }  # fmt: skip
    status = GateStatus(instance=instance, **healthy | fields)
    return GateHealth(status, report_age_s, 60.0, missed_s, is_foreign)


class TestProblems:
    def test_a_healthy_gate_has_none(self) -> None:
        assert gate_problems(a_gate(callers=(ANN,)), {ANN}) == {}

    @pytest.mark.parametrize(
        ("gate", "problem", "sentence"),
        [
            (a_gate(report_age_s=SILENT_S + 1), "silent", "sent its last report 91 s ago"),
            (a_gate(age=31.0), "stale", "its last answer 31 s before"),
            (a_gate(age=6.0, stale_after=5.0), "stale", "its view is stale"),
            (a_gate(age=None), "stale", "never had an answer"),
            (a_gate(missed_s=BEHIND_S + 1), "behind", "lacked a version that was 11 s old"),
            (a_gate(is_foreign=True), "foreign", "never this feed's"),
            (a_gate(clock_skew=-SKEW_S - 1), "clock", "a clock that is 3.0 s behind"),
            (a_gate(mode="process"), "off", "GATEKEEPER=off"),
            (a_gate(ignored=("action sing",)), "old", "ignores: action sing"),
            (a_gate(callers=(ANN, BOB)), "unknown-callers", "of which the log knows 50%"),
        ],
    )  # fmt: skip
    def test_each_problem_has_a_sentence(self, gate: GateHealth, problem: str, sentence: str) -> None:
        found = gate_problems(gate, {ANN})
        assert list(found) == [problem]
        assert sentence in found[problem]

    @pytest.mark.parametrize(
        "gate",
        [
            a_gate(report_age_s=35.0), a_gate(age=30.0), a_gate(missed_s=BEHIND_S),
            a_gate(clock_skew=SKEW_S),
            a_gate(mode="shadow"), a_gate(callers=tuple(f"user:{n}" for n in range(10))),
        ],
    )  # fmt: skip
    def test_a_value_at_its_bound_is_not_a_problem(self, gate: GateHealth) -> None:
        assert gate_problems(gate, {f"user:{n}" for n in range(9)}) == {}

    def test_without_callers_there_is_no_share(self) -> None:
        assert known_share((), {ANN}) is None

    def test_a_process_that_was_replaced_is_left_out(self) -> None:
        gone, new = a_gate("old", report_age_s=500.0), a_gate("new")
        assert living_gates([gone, new]) == [new]

    def test_of_a_silent_application_the_gate_that_reported_last_stays(self) -> None:
        older, last, other = (
            a_gate("a", report_age_s=500.0),
            a_gate("b", report_age_s=400.0),
            a_gate("c", application="x"),
        )
        assert living_gates([older, last, other]) == [other, last]


def test_hits_are_added_up_by_lock() -> None:
    ann, bob = LockKey("caller", ANN, "", "daily"), LockKey("caller", BOB, "", "daily")
    first = a_gate(locks=(LockHits(ann, 3, 2), LockHits(bob, 9, 9)), more=(10, 1))
    assert hits_by_lock([first, a_gate(locks=(LockHits(ann, 10, 1),))]) == [
        (LockHits(ann, 13, 3), 2),
        (LockHits(bob, 9, 9), 1),
    ]
    assert (first.checks, first.denials) == (22, 12)


class TestCauses:
    @pytest.mark.parametrize(
        ("asked", "logged", "differs"),
        [
            ("api_key:acme", "user:acme", "the kind of name"),
            ("acme", "api_key:acme", "the kind of name"),
            ("user: acme ", "user:acme", "blanks"),
            ("user:Acme", "user:acme", "capital letters"),
            ("user:a%20b", "user:a b", "percent-encoded"),
            ("api_key:Bearer s3cret", "api_key:s3cret", "'Bearer' in front"),
            ("address:2001:DB8::9", "address:2001:db8::9", "capital letters"),
            ("address:2001:db8::9", "address:2001:db8::/64", "64 bits"),
            ("address:192.0.2.1:4711", "address:192.0.2.1", "how the address is written"),
            ("address:::ffff:192.0.2.1", "address:192.0.2.1", "how the address is written"),
        ],
    )
    def test_another_name_for_the_same_caller_is_found(self, asked: str, logged: str, differs: str) -> None:
        assert logged in {other.name for other in spellings(asked)}
        why, cure = cause([asked], LogKnowledge({logged}, ("api_key", "user", "address")))
        assert f"the log knows {logged}, the gate is asked for {asked}" in why
        assert differs in why
        assert "caller" in cure

    @pytest.mark.parametrize(
        ("asked", "log", "why"),
        [
            (["acme"], LogKnowledge(set(), ()), "has no kind of name"),
            (["user:a\x00"], LogKnowledge(set(), ()), "cannot be a name"),
            (["user:" + "x" * 257], LogKnowledge(set(), ()), "cannot be a name"),
            (
                ["session:1"],
                LogKnowledge(set(), ("user", "address")),
                "no source counts by session: .* user or address",
            ),
            ([ANN], LogKnowledge(set(), ("user",), overflow=True), "too many callers"),
            ([ANN], LogKnowledge(set(), ("user",), behind_s=BEHIND_MAX_S + 1), "61 s behind"),
            (["address:10.0.0.7"], LogKnowledge(set(), ("address",)), "of a proxy"),
            ([ANN], LogKnowledge(set(), ("user",)), "may be new"),
        ],
    )
    def test_without_another_spelling_the_likeliest_cause_is_returned(
        self, asked: list[str], log: LogKnowledge, why: str
    ) -> None:
        assert re.search(why, cause(asked, log).why)

    def test_every_name_that_an_application_asks_for_has_a_cause(self) -> None:
        for caller in ("", ":", "a:", "\ud800", "address:", "address:[", "user:%", "x" * 300):
            assert all(other.name != caller for other in spellings(caller))
            assert cause([caller], LogKnowledge(set(), ("user",))).why


class TestSummary:
    def test_gates_are_counted_by_application_and_first_problem(self) -> None:
        gates = [
            a_gate("a:1", callers=(ANN,)),
            a_gate("a:2", mode="shadow"),
            a_gate("a:3", age=40.0, is_foreign=True),
            a_gate("a:4", report_age_s=SILENT_S + 1),  # its application reports: it was replaced
            a_gate("b:1", application="till", mode="fleet", age=None),
        ]
        summary = fleet_summary(gates)
        shop = {("shop", "fine"): 1, ("shop", "shadow"): 1, ("shop", "stale"): 1}
        assert summary.gates == shop | {("till", "stale"): 1}
        assert summary.view_ages_s == {"shop": 41.0}, "the other never had an answer"


def test_a_policy_in_force_by_a_value_that_a_living_gate_does_not_take_is_named() -> None:
    daily = Quota("tokens", 100, Calendar("day"), per="caller+model")
    shadow = Quota("tried", 100, Calendar("day"), per="model", mode="shadow")
    noticed = Quota("noticed", 100, Calendar("day"), per="model", action="notify")
    plan = make_plan([], [], [daily, shadow, noticed, Quota("all", 9, Calendar("day"))])
    knows, lacks = a_gate("a:1:a", values=("model",)), a_gate("b:1:b", values=("region",))
    silent = a_gate("c:1:c", report_age_s=SILENT_S + 1)
    assert unasked_values(plan.policies, [knows, silent]) == []
    [unasked] = unasked_values(plan.policies, [knows, lacks, silent])
    assert unasked == ("tokens", "model", ("shop b:1:b",), 1)
    assert unasked.text.startswith(
        "tokens cannot be enforced: shop b:1:b does not take the named value model;"
    )
    [alone] = unasked_values(plan.policies, [lacks, a_gate("d:1:d")])
    assert "shop b:1:b and 1 more do not take the named value model, and no other gate does" in alone.text


def test_an_activation_refuses_only_what_it_would_begin_to_enforce() -> None:
    shadow = make_plan([], [], [Quota("tokens", 100, Calendar("day"), per="model", mode="shadow")])
    enforced = make_plan([], [], [Quota("tokens", 100, Calendar("day"), per="model")])
    lower = make_plan([], [], [Quota("tokens", 50, Calendar("day"), per="model")])
    gates = [a_gate()]
    assert [unasked.policy for unasked in newly_unasked(None, enforced, gates)] == ["tokens"]
    assert [unasked.policy for unasked in newly_unasked(shadow, enforced, gates)] == ["tokens"]
    assert newly_unasked(enforced, lower, gates) == newly_unasked(None, shadow, gates) == []
