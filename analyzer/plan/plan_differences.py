"""The difference between two plans in words, for the audit log, messages and `gatelock doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from analyzer.plan.plan import Plan, meaning
from analyzer.plan.policies import CANDIDATE, DEFAULT_BRAKE

SHOWN_MAX = 12  # differences in one text
VALUE_MAX = 60  # characters of one value
# Of policies: values that are absent where a configuration states none, and that have an effect.
ABSENT = {"mode": "enforce", "brake": meaning(DEFAULT_BRAKE)}
NOT_REFUSING = ("tag", "notify")  # actions


class Part(NamedTuple):
    """A part of a plan, or one value of it.

    Attributes:
        stated: What differs from the defaults, as `meaning` returns it; None for nothing.
        effective: The same with the defaults.
    """

    stated: Any
    effective: Any

    @classmethod
    def of(cls, value: Any, absent: Mapping[str, Any] | None = None) -> Part:
        """Returns a part of a plan. `absent` has what holds where the part states nothing."""
        absent = absent or {}
        return cls({**absent, **meaning(value)}, {**absent, **meaning(value, with_defaults=True)})

    def at(self, name: str) -> Part:
        """Returns the value of this name."""
        is_stated = isinstance(self.stated, Mapping)
        return Part(self.stated.get(name) if is_stated else None, self.effective.get(name))


def differences(old: Plan, new: Plan) -> list[str]:
    """Returns one line for each difference: "policy daily: limit 500 to 2,000".

    Empty for plans that count and judge alike.
    """
    return [
        *_of_lists("grouping", old.groupings, new.groupings),
        *_of_kind("named value", _named_values(old), _named_values(new)),
        *_of_kind("meter", _meters(old), _meters(new)),
        *_of_kind("policy", _policies(old), _policies(new)),
        *_of_kind("override", _overrides(old), _overrides(new)),
        *_of_kind(
            "source",
            {name: Part.of(mapping) for name, mapping in old.sources.items()},
            {name: Part.of(mapping) for name, mapping in new.sources.items()},
        ),
        *_of_forgotten(len({*new.forgotten} - {*old.forgotten})),
    ]


def unenforced(old: Plan, new: Plan) -> tuple[str, ...]:
    """Returns the policies by which `old` refuses requests and `new` does not.

    They are gone, in shadow, or only tag requests.
    """
    refusing = {*_refusing(new)}
    return tuple(name for name in _refusing(old) if name not in refusing)


def _refusing(plan: Plan) -> Iterable[str]:
    return (
        policy.name
        for policy in plan.policies
        if not policy.is_shadow and policy.action not in NOT_REFUSING and not policy.name.endswith(CANDIDATE)
    )


def stopped_text(policies: Iterable[str], locks: int) -> str:
    """Returns what happens when these policies refuse no more: "this stops enforcing 2 locks by surge".

    >>> stopped_text(["surge"], 2)
    'this stops enforcing 2 locks by surge'
    >>> stopped_text(["daily", "surge"], 0)
    'this stops enforcing daily, surge, without a lock at this time'
    """
    names = ", ".join(policies)
    if locks:
        return f"this stops enforcing {locks:,} {'lock' if locks == 1 else 'locks'} by {names}"
    return f"this stops enforcing {names}, without a lock at this time"


def _of_forgotten(added: int) -> Iterator[str]:
    if added:
        yield f"{added} {'caller' if added == 1 else 'callers'} forgotten"


def _named_values(plan: Plan) -> dict[str, Part]:
    fields = {name: {"field": path} for name, path in plan.named_values.items()}
    return {name: Part(stated, stated) for name, stated in fields.items()}


def _meters(plan: Plan) -> dict[str, Part]:
    return {meter.name: Part.of(meter) for meter in plan.meters}


def _policies(plan: Plan) -> dict[str, Part]:
    return {policy.name: Part.of(policy, ABSENT | {"kind": policy.kind}) for policy in plan.policies}


def _overrides(plan: Plan) -> dict[str, Part]:
    """Returns the reason of each override, by the override as a phrase."""
    reasons = {
        f"of {override.subject_kind} {override.subject}: "
        + (
            "exempt"
            if override.kind == "exempt"
            else f"{override.policy} {override.kind} {override.amount:,}"
        )
        + f"{_time(' from', override.from_s)}{_time(' until', override.until_s)}": {"reason": override.reason}
        for override in plan.overrides
    }
    return {name: Part(reason, reason) for name, reason in reasons.items()}


def _time(word: str, at_s: int | None) -> str:
    return "" if at_s is None else f"{word} {datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%MZ}"


def in_words(lines: list[str]) -> str:
    """Returns differences as one bounded text."""
    more = len(lines) - SHOWN_MAX
    return "; ".join(lines[:SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])) or "no difference"


def _of_lists(kind: str, old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[str]:
    yield from (f"{kind} {name} added" for name in new if name not in old)
    yield from (f"{kind} {name} removed" for name in old if name not in new)


def _of_kind(kind: str, old: Mapping[str, Part], new: Mapping[str, Part]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield f"{kind} {name} added"
        elif name not in new:
            yield f"{kind} {name} removed"
        else:
            changes = ", ".join(_changes(old[name], new[name], ""))
            if changes:
                yield f"{kind} {name}: {changes}"


def _changes(old: Part, new: Part, path: str) -> Iterator[str]:
    """Yields "limit 500 to 2,000" for each value that differs; paths as in the configuration."""
    if old.stated == new.stated:
        return
    if isinstance(old.effective, Mapping) and isinstance(new.effective, Mapping):
        mappings = [part.stated for part in (old, new) if isinstance(part.stated, Mapping)]
        for name in sorted({name for mapping in mappings for name in mapping}):
            yield from _changes(old.at(name), new.at(name), f"{path}.{name}" if path else name)
        return
    yield f"{path} {_shown(old.effective)} to {_shown(new.effective)}"


def _shown(value: Any) -> str:
    if value is None or value == "" or (isinstance(value, list | Mapping) and not value):
        return "(none)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        text = ", ".join(_shown(item) for item in value)
    elif isinstance(value, Mapping):
        text = ", ".join(f"{name} {_shown(item)}" for name, item in value.items() if name)
    else:
        text = str(value)
    return text if len(text) <= VALUE_MAX else text[: VALUE_MAX - 3] + "..."
