"""The `action` of a policy: the forms that are accepted, and the faults of others."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from analyzer.config.settings import FaultsFound, Settings
from analyzer.config.tables.actions import Action, LockAction
from gatekeeper.model import Rate

ACTION = TypeAdapter(Action)


@pytest.mark.parametrize(
    ("value", "action"),
    [
        ("deny", LockAction("deny")),
        ({"deny": 503}, LockAction("deny", 503)),
        ("tag", LockAction("tag")),
        ("notify", LockAction("notify")),
        ({"slow": "10/s"}, LockAction("slow", slow=Rate(10, 1.0))),
        ({"slow": "1_000 / 1m"}, LockAction("slow", slow=Rate(1000, 60.0))),
        ({"slow": "5/30s"}, LockAction("slow", slow=Rate(5, 30.0))),
    ],
)
def test_an_action_is_parsed(value: object, action: LockAction) -> None:
    assert ACTION.validate_python(value) == action


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("slow", "needs a rate"),
        ("denny", "is not an action"),
        ({"slow": "10"}, "is not a rate"),
        ({"slow": "0/s"}, "is not a rate"),
        ({"slow": "1/0s"}, "is not a rate"),
        ({"slow": 10}, "is not a rate"),
        ({"deny": 200}, "deny must be an HTTP status"),
        ({"deny": True}, "deny must be an HTTP status"),
        ({"slow": "1/s", "deny": 503}, "is not an action"),
        (7, "is not an action"),
    ],
)
def test_other_values_are_faults(value: object, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        ACTION.validate_python(value)


def a_policy(**keys: object) -> dict[str, object]:
    return {"name": "daily", "limit": 10, "window": {"per": "day"}, **keys}


def test_an_action_becomes_part_of_the_plan() -> None:
    policies = (a_policy(action={"slow": "10/s"}, status=503), a_policy(name="soft", action={"deny": 403}))
    slow, soft = Settings(policies=policies).plan().policies
    assert (slow.action, slow.slow, slow.status) == ("slow", Rate(10), 503)
    assert (soft.action, soft.slow, soft.status) == ("deny", None, 403)


@pytest.mark.parametrize(
    ("action", "what"), [({"deny": 503}, "is set here and in the action"), ("tag", "has no effect")]
)
def test_a_status_without_effect_is_a_fault(action: object, what: str) -> None:
    with pytest.raises(FaultsFound) as raised:
        Settings(policies=(a_policy(action=action, status=403),))
    (fault,) = raised.value.faults
    assert what in fault.what
