"""What is asked of each record, a column at a time. An answer of None says that it cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyzer.core.records.decimals import scaled
from analyzer.core.records.formats import Columns, RawValue
from analyzer.core.records.mapping import Condition, FieldPath, Mapping, NumberField, TimeField
from analyzer.core.records.timestamps import clf_ms, rfc3339_ms
from analyzer.core.records.value_rules import MemoizedRule, caller_rule, condition_rule, text_rule, time_rule

Answers = list[Any]  # one for each record; None where it cannot be read

VALUE_MAX = 2**53
MS_MAX = 2**63
QUICK_MAX = 2**50  # a time in any unit that is no trouble in any other
WHOLE = {int}
MS_PLACES = {"s": 3, "ms": 0, "us": -3, "ns": -6}  # from a unit to milliseconds
MICRO_PLACES = {"s": 6, "ms": 3, "us": 0, "ns": -3}


class ColumnIndex:
    """Which paths are read, each once, and which column holds its values."""

    def __init__(self) -> None:
        self.paths: list[FieldPath] = []

    def of(self, path: FieldPath) -> int:
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)


class CallerColumn:
    """The caller's typed name, by the first field that is there."""

    def __init__(self, mapping: Mapping, slots: ColumnIndex) -> None:
        """Raises ValueError when the mapping names no field."""
        self._rules = [
            (slots.of(field.path), caller_rule(name, field, mapping.name_bytes_max))
            for name in mapping.caller
            if (field := mapping.fields.get(name)) is not None
        ]
        if not self._rules:
            raise ValueError(
                f"none of the fields {', '.join(mapping.caller)} is mapped: nobody can be a caller"
            )

    def answers(self, columns: Columns) -> Answers:
        (slot, rule), *others = self._rules
        names = rule.answers(columns[slot])
        for slot, rule in others:
            if all(names):
                return names
            # Only what is missing is asked for elsewhere: a name that is wrong is nobody else's.
            further = rule.answers(columns[slot])
            names = [other if name == "" else name for name, other in zip(names, further, strict=True)]
        return names if all(names) else [name or None for name in names]


class TimeColumn:
    """When the request happened, in milliseconds; the record's own Kafka time when no field says."""

    def __init__(self, field: TimeField | None, slots: ColumnIndex) -> None:
        self._slot = None if field is None else slots.of(field.path)
        self._places = 0 if field is None else MS_PLACES.get(field.unit, 0)
        ms_of = {"rfc3339": rfc3339_ms, "clf": clf_ms}.get("" if field is None else field.unit)
        self._written = None if ms_of is None else time_rule(ms_of)

    def answers(self, columns: Columns, kafka_ms: Sequence[int | None]) -> Answers:
        if self._slot is None:
            return [None if ms is None or ms < 0 else ms for ms in kafka_ms]
        column = columns[self._slot]
        if self._written is not None:
            return list(map(self._written, column))
        if set(map(type, column)) == WHOLE and min(column) > -QUICK_MAX and max(column) < QUICK_MAX:
            times, parts = 10 ** max(0, self._places), 10 ** max(0, -self._places)
            return column if times == parts else [raw * times // parts for raw in column]
        return [self._one(raw) for raw in column]

    def _one(self, raw: RawValue) -> int | None:
        ms = scaled(raw, self._places) if type(raw) is int or type(raw) is bytes else None
        return ms if ms is not None and -MS_MAX <= ms < MS_MAX else None


class NumberColumn:
    """A number in its smallest unit, from 0 to 2**53."""

    def __init__(self, mapping: Mapping, name: str, slots: ColumnIndex) -> None:
        """A field of another kind, or of another source, is a number that this source does not have."""
        field = mapping.fields.get(name)
        self._slot = None
        if isinstance(field, NumberField):
            self._slot = slots.of(field.path)
            self._whole, self._default = field.kind == "whole", field.default
            self._places = {"whole": 0, "decimal": 6}.get(field.kind, MICRO_PLACES[field.unit])
            self._rule = MemoizedRule(self._one, frozenset({int, bytes, type(None)}))

    def answers(self, columns: Columns) -> Answers:
        if self._slot is None:
            return []
        column = columns[self._slot]
        plain = self._places == 0 and set(map(type, column)) == WHOLE
        return (
            column if plain and min(column) >= 0 and max(column) <= VALUE_MAX else self._rule.answers(column)
        )

    def _one(self, raw: RawValue) -> int | None:
        if raw is None:
            return self._default
        if type(raw) is not int and (self._whole or type(raw) is not bytes):
            return None
        number = scaled(raw, self._places)
        return number if number is not None and 0 <= number <= VALUE_MAX else None


class ConditionColumn:
    """Whether all of some conditions hold. One on a field that this source does not have never does."""

    def __init__(self, mapping: Mapping, conditions: Sequence[Condition], slots: ColumnIndex) -> None:
        self._rules: list[tuple[int, MemoizedRule]] | None = []
        for name, wanted in conditions:
            field = mapping.fields.get(name)
            if field is None:
                self._rules = None
                break
            self._rules.append((slots.of(field.path), condition_rule(field, wanted)))

    def answers(self, columns: Columns) -> Answers:
        """Nothing at all where there is nothing to ask."""
        if self._rules is None:
            return [False] * len(columns[0])
        held = [rule.answers(columns[slot]) for slot, rule in self._rules]
        if len(held) < 2:
            return held[0] if held else []
        return [None if None in each else all(each) for each in zip(*held, strict=True)]


class TextColumn:
    """A field's text to count by; "" when the record or its whole source lacks it."""

    def __init__(self, mapping: Mapping, name: str, slots: ColumnIndex) -> None:
        field = mapping.fields.get(name)
        self._slot = None if field is None else slots.of(field.path)
        self._rule = None if field is None else text_rule(field, mapping.name_bytes_max)

    def answers(self, columns: Columns) -> Answers:
        if self._slot is None or self._rule is None:
            return [""] * len(columns[0])
        return self._rule.answers(columns[self._slot])
