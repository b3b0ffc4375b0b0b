"""The difference between two plans in words, for the audit log, messages and `gatelock doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from analyzer.core.judging.plan import Plan, meaning

SHOWN_MAX = 12  # differences in one text
VALUE_MAX = 60  # characters of one value


def differences(before: Plan, after: Plan) -> list[str]:
    """Returns one line for each difference: "policy daily: limit 500 to 2,000".

    Empty for plans that count and judge alike.
    """
    return [
        *_of_lists("grouping", before.groupings, after.groupings),
        *_of_kind("meter", before.rules["meters"], after.rules["meters"]),
        *_of_kind("policy", _policies(before), _policies(after)),
        *_of_kind("override", _overrides(before), _overrides(after)),
        *_of_kind(
            "source",
            {name: meaning(mapping) for name, mapping in before.sources.items()},
            {name: meaning(mapping) for name, mapping in after.sources.items()},
        ),
        *_of_forgotten(len({*after.forgotten} - {*before.forgotten})),
    ]


def _of_forgotten(added: int) -> Iterator[str]:
    if added:
        yield f"{added} {'caller' if added == 1 else 'callers'} forgotten"


def _policies(plan: Plan) -> dict[str, Any]:
    return {policy.name: {"kind": policy.kind} | meaning(policy) for policy in plan.policies}


def _overrides(plan: Plan) -> dict[str, Any]:
    """Returns the reason of each override, by the override as a phrase."""
    return {
        f"of {one.subject_kind} {one.subject}: "
        + ("exempt" if one.kind == "exempt" else f"{one.policy} {one.kind} {one.amount:,}")
        + f"{_time(' from', one.from_s)}{_time(' until', one.until_s)}": {"reason": one.reason}
        for one in plan.overrides
    }


def _time(word: str, at_s: int | None) -> str:
    return "" if at_s is None else f"{word} {datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%MZ}"


def in_words(lines: list[str]) -> str:
    """Returns differences as one bounded text."""
    more = len(lines) - SHOWN_MAX
    return "; ".join(lines[:SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])) or "no difference"


def _of_lists(kind: str, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[str]:
    yield from (f"{kind} {name} added" for name in after if name not in before)
    yield from (f"{kind} {name} removed" for name in before if name not in after)


def _of_kind(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield f"{kind} {name} added"
        elif name not in after:
            yield f"{kind} {name} removed"
        else:
            changes = ", ".join(_changes(before[name], after[name], ""))
            if changes:
                yield f"{kind} {name}: {changes}"


def _changes(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yields "limit 500 to 2,000" for each value that differs; paths as in the configuration."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            below = f"{path}.{name}" if path else name
            yield from _changes(before.get(name), after.get(name), below)
        return
    yield f"{path} {_shown(before)} to {_shown(after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "(default)"
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
