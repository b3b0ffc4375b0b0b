"""The difference between two plans, in words."""

from __future__ import annotations

from analyzer.plan.mapping import Condition, SourceMapping, TextField, TimeField
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from analyzer.plan.plan_differences import differences, in_words, unenforced
from analyzer.plan.policies import Brake, Quota
from analyzer.plan.windows import Calendar
from gatekeeper.model import Rate

DAILY = Quota("daily", 500, Calendar("day"))
WEB = SourceMapping(time=TimeField(("ts",), "s"), fields={"user": TextField(("user",))})


def test_each_change_has_its_old_and_its_new_value() -> None:
    slow = Quota("daily", 2000, Calendar("day", "Europe/Berlin"), action="slow", slow=Rate(10))
    before = make_plan(["tenant"], [Meter("errors")], [DAILY, Quota("old", 1, Calendar("day"))], {"web": WEB})
    mapping = SourceMapping(time=TimeField(("ts",), "ms"), fields={"user": TextField(("name",))})
    after = make_plan(
        ["everyone"],
        [Meter("errors", where=(Condition("status", ("500-599",)),)), Meter("bytes", "bytes")],
        [slow],
        {"web": mapping, "proxy": WEB},
    )
    assert differences(before, after) == [
        "grouping everyone added",
        "grouping tenant removed",
        "meter bytes added",
        "meter errors: where (none) to status, 500-599",
        "policy daily: action deny to slow, limit 500 to 2,000, slow (none) to 10, 1.0, "
        "window.zone UTC to Europe/Berlin",
        "policy old removed",
        "source proxy added",
        "source web: fields.user.path user to name, time.unit s to ms",
    ]


def test_equal_plans_have_no_difference() -> None:
    plan = make_plan(["tenant"], [Meter("errors")], [DAILY], {"web": WEB})
    assert differences(plan, plan) == []
    assert in_words([]) == "no difference"


def test_very_many_differences_are_bounded() -> None:
    policies = [Quota(f"p{number:02}", 1, Calendar("day")) for number in range(30)]
    text = in_words(differences(make_plan([], [], []), make_plan([], [], policies)))
    assert text.endswith("policy p11 added; and 18 more")


def test_long_values_are_cut() -> None:
    listed = Condition("path", tuple(f"/v1/{n:03}" for n in range(50)))
    before = make_plan([], [Meter("m", where=(listed,))], [])
    [line] = differences(before, make_plan([], [Meter("m")], []))
    assert len(line) < 120


def test_a_default_is_shown_as_the_value_that_it_stands_for() -> None:
    before = make_plan([], [], [DAILY])
    changed = Quota("daily", 500, Calendar("day"), mode="shadow", status=503, brake=Brake(callers=10))
    after = make_plan([], [], [changed])
    assert differences(before, after) == [
        "policy daily: brake.callers 1,000 to 10, mode enforce to shadow, status 429 to 503"
    ]
    [back] = differences(after, before)
    assert "mode shadow to enforce" in back
    assert "default" not in back


def test_policies_stop_refusing_in_shadow_when_gone_and_when_they_only_tag() -> None:
    policies = [
        Quota("stays", 1, Calendar("day")),
        Quota("goes", 1, Calendar("day")),
        Quota("hides", 1, Calendar("day")),
        Quota("tags", 1, Calendar("day")),
        Quota("was-hidden", 1, Calendar("day"), mode="shadow"),
    ]
    after = [
        Quota("stays", 900, Calendar("day")),
        Quota("hides", 1, Calendar("day"), mode="shadow"),
        Quota("tags", 1, Calendar("day"), action="tag"),
    ]
    assert unenforced(make_plan([], [], policies), make_plan([], [], after)) == ("goes", "hides", "tags")
    assert unenforced(make_plan([], [], after), make_plan([], [], policies)) == ()
