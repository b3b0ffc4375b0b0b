"""What a lock does, as a policy says it."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from analyzer.config.settings import Settings
from analyzer.config.tables.actions import Action, LockAction
from gatekeeper.model import Rate

ACTION = TypeAdapter(Action)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("deny", LockAction("deny")),
        ({"deny": 503}, LockAction("deny", 503)),
        ("tag", LockAction("tag")),
        ({"slow": "10/s"}, LockAction("slow", slow=Rate(10, 1.0))),
        ({"slow": "1_000 / 1m"}, LockAction("slow", slow=Rate(1000, 60.0))),
        ({"slow": "5/30s"}, LockAction("slow", slow=Rate(5, 30.0))),
    ],
)
def test_an_action_is_read(said: object, meant: LockAction) -> None:
    assert ACTION.validate_python(said) == meant


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("slow", "does not say how much"),
        ("notify", "not available"),
        ("denny", "did you mean|is no action"),
        ({"slow": "10"}, "is no rate"),
        ({"slow": "0/s"}, "is no rate"),
        ({"slow": "1/0s"}, "is no rate"),
        ({"slow": 10}, "is no rate"),
        ({"deny": 200}, "no status of a refusal"),
        ({"deny": True}, "no status of a refusal"),
        ({"slow": "1/s", "deny": 503}, "is no action"),
        (7, "is no action"),
    ],
)
def test_what_is_no_action_is_refused(said: object, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        ACTION.validate_python(said)


def a_policy(**said: object) -> dict[str, object]:
    return {"name": "daily", "limit": 10, "window": {"per": "day"}, **said}


def test_an_action_goes_into_the_plan() -> None:
    told = (a_policy(action={"slow": "10/s"}, status=503), a_policy(name="soft", action={"deny": 403}))
    slow, soft = Settings(policies=told).plan().policies
    assert (slow.action, slow.slow, slow.status) == ("slow", Rate(10), 503)
    assert (soft.action, soft.slow, soft.status) == ("deny", None, 403)


@pytest.mark.parametrize(
    ("action", "what"), [({"deny": 503}, "is said twice"), ("tag", '"tag" refuses nobody')]
)
def test_a_status_that_means_nothing_is_a_fault(action: object, what: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what settings raise inside pydantic is its own
        Settings(policies=(a_policy(action=action, status=403),))
    assert [what in complaint.what for complaint in raised.value.complaints] == [True]
