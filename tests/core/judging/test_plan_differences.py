"""The difference between two plans, in words."""

from __future__ import annotations

from analyzer.core.counting.meters import Meter
from analyzer.core.judging.plan import plan_of
from analyzer.core.judging.plan_differences import differences, in_words
from analyzer.core.judging.policies import Quota
from analyzer.core.judging.windows import Calendar
from analyzer.core.records.mapping import SourceMapping, TextField, TimeField
from gatekeeper.model import Rate

DAILY = Quota("daily", 500, Calendar("day"))
WEB = SourceMapping(time=TimeField(("ts",), "s"), fields={"user": TextField(("user",))})


def test_each_change_has_its_old_and_its_new_value() -> None:
    slow = Quota("daily", 2000, Calendar("day", "Europe/Berlin"), action="slow", slow=Rate(10))
    before = plan_of(["tenant"], [Meter("errors")], [DAILY, Quota("old", 1, Calendar("day"))], {"web": WEB})
    mapping = SourceMapping(time=TimeField(("ts",), "ms"), fields={"user": TextField(("name",))})
    after = plan_of(
        ["everyone"],
        [Meter("errors", where=(("status", ("500-599",)),)), Meter("bytes", "bytes")],
        [slow],
        {"web": mapping, "proxy": WEB},
    )
    assert differences(before, after) == [
        "grouping everyone added",
        "grouping tenant removed",
        "meter bytes added",
        "meter errors: where (default) to status, 500-599",
        "policy daily: action (default) to slow, limit 500 to 2,000, slow (default) to 10, 1.0, "
        "window.zone (default) to Europe/Berlin",
        "policy old removed",
        "source proxy added",
        "source web: fields.user.path user to name, time.unit s to ms",
    ]


def test_equal_plans_have_no_difference() -> None:
    plan = plan_of(["tenant"], [Meter("errors")], [DAILY], {"web": WEB})
    assert differences(plan, plan) == []
    assert in_words([]) == "no difference"


def test_very_many_differences_are_bounded() -> None:
    policies = [Quota(f"p{number:02}", 1, Calendar("day")) for number in range(30)]
    text = in_words(differences(plan_of([], [], []), plan_of([], [], policies)))
    assert text.endswith("policy p11 added; and 18 more")


def test_long_values_are_cut() -> None:
    before = plan_of([], [Meter("m", where=(("path", tuple(f"/v1/{n:03}" for n in range(50))),))], [])
    [line] = differences(before, plan_of([], [Meter("m")], []))
    assert len(line) < 120
