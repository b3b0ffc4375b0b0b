"""Columns of values, one value per record: caller, time, numbers, conditions, texts. None: unusable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import UnsetType

from analyzer.plan.decimals import number_in, scaled
from analyzer.plan.format_decoder import Columns, RawValue
from analyzer.plan.groupings import Dimension
from analyzer.plan.mapping import (
    AddressField,
    Condition,
    FieldPath,
    NumberField,
    ResourceField,
    SourceMapping,
    TextField,
    TimeField,
)
from analyzer.plan.timestamps import clf_ms, rfc3339_ms
from analyzer.plan.value_rules import (
    NO_DIGESTS,
    UNUSABLE,
    Digests,
    MemoizedRule,
    RouteConditionRule,
    as_event_id,
    caller_rule,
    condition_rule,
    distinct_rule,
    fact_rule,
    network_rule,
    text_rule,
    time_rule,
)
from gatekeeper.identity import MISSING, UNNAMED

Answers = list[Any]  # one value per record; None where the record cannot be read

VALUE_MAX = 2**53
MS_MAX = 2**63
FAST_TIME_MAX = 2**50  # below it a time of any unit converts to any other within 64 bits
INTEGERS = {int}
NUMBER_TYPES = frozenset({int, bytes, str, type(None)})
ADDRESS = "address"
DASH = "-"  # where servers write that a request has no id
MS_PLACES = {"s": 3, "ms": 0, "us": -3, "ns": -6}  # decimal places from a unit to milliseconds
MICRO_PLACES = {"s": 6, "ms": 3, "us": 0, "ns": -3}


class ColumnIndex:
    """The paths that are read, each once, with the index of the column that holds its values."""

    def __init__(self) -> None:
        self.paths: list[FieldPath] = []

    def of(self, path: FieldPath) -> int:
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)


class CallerNames(NamedTuple):
    """The callers of some records."""

    names: Answers  # None: a caller field holds a value that is not text
    renamed: list[bool]  # whether a record had an unusable name, or none; empty: no record had
    # Indexes of the records without any caller field: if all of them have none, the paths may be wrong.
    fieldless: Collection[int] = frozenset()


class CallerColumn:
    """The caller's typed name, from the first caller field that has a usable one.

    Behind the fields of `caller` comes the address, where the source maps one, and at last UNNAMED.
    """

    def __init__(self, mapping: SourceMapping, index: ColumnIndex, digests: Digests = NO_DIGESTS) -> None:
        """Raises ValueError when the mapping has none of the caller fields; SecretMissing."""
        mapped = [name for name in mapping.caller if name in mapping.fields]
        if not mapped:
            raise ValueError(f"caller: map one of the fields {', '.join(mapping.caller)}")
        if isinstance(mapping.fields.get(ADDRESS), AddressField) and ADDRESS not in mapped:
            mapped.append(ADDRESS)
        fields = [(name, mapping.fields[name]) for name in mapped]
        self._rules = [
            (index.of(field.path), caller_rule(name, field, mapping.name_bytes_max, digests))
            for name, field in fields
        ]

    def names_of(self, texts: Collection[str]) -> set[str]:
        """Returns the names that callers have whose fields hold these texts."""
        names = (rule.rule(text) for _, rule in self._rules for text in texts)
        return {name for name in names if name and name is not UNUSABLE}

    def read(self, columns: Columns) -> CallerNames:
        (column, rule), *further_rules = self._rules
        names = rule.read(columns[column])
        if all(names):  # most columns
            return CallerNames(names, [])
        unusable: set[int] = set()
        not_text: set[int] = set()
        _note(names, unusable, not_text)
        for column, rule in further_rules:
            further = rule.read(columns[column])
            names = [name or fallback for name, fallback in zip(names, further, strict=True)]
            if all(names):
                break
            _note(names, unusable, not_text)
        is_complete = all(names)
        if is_complete and not unusable and not not_text:
            return CallerNames(names, [])
        fieldless = frozenset[int]() if is_complete else self._name_the_nameless(names, columns)
        for index in not_text:
            names[index] = None
        renamed = [index in unusable or name == UNNAMED for index, name in enumerate(names)]
        return CallerNames(names, renamed if True in renamed else [], fieldless)

    def _name_the_nameless(self, names: Answers, columns: Columns) -> frozenset[int]:
        """Gives UNNAMED to records without a name, and returns the indexes of those without a field."""
        nameless = [index for index, name in enumerate(names) if not name]
        for index in nameless:
            names[index] = UNNAMED
        return frozenset(
            index for index in nameless if all(columns[column][index] is None for column, _ in self._rules)
        )


class CountIfColumn:
    """The callers of records by `count_if`: those for which it does not hold lose their name.

    Their secret may have been wrong, so that their name may be another caller's.
    """

    def __init__(self, mapping: SourceMapping, index: ColumnIndex) -> None:
        self._conditions = ConditionColumn(mapping, mapping.count_if or (), index)
        self._address: tuple[int, MemoizedRule] | None = None
        address = mapping.fields.get(ADDRESS)
        if isinstance(address, AddressField):
            rule = caller_rule(ADDRESS, address, mapping.name_bytes_max)
            self._address = index.of(address.path), rule

    def applied_to(self, callers: CallerNames, denied: Answers, columns: Columns) -> CallerNames:
        """Returns the callers, with the address or UNNAMED for each record that loses its name.

        Requests that a gate denied keep it: the gate responded before a secret was checked. Records
        without a readable caller stay so.
        """
        answers = self._conditions.read(columns)  # None: a value that cannot be compared
        if denied:
            answers = [answer or was_denied for answer, was_denied in zip(answers, denied, strict=True)]
        if all(answers):
            return callers
        addresses: Answers = [None] * len(answers)
        if self._address is not None:
            column, rule = self._address
            addresses = rule.read(columns[column])
        names, renamed = list(callers.names), callers.renamed or [False] * len(answers)
        for index, keeps_name in enumerate(answers):
            if not keeps_name and names[index] is not None:
                name = addresses[index] or UNNAMED
                renamed[index] = renamed[index] or name != names[index]
                names[index] = name
        return CallerNames(names, renamed if True in renamed else [], callers.fieldless)


def _note(names: Answers, unusable: set[int], not_text: set[int]) -> None:
    """Adds the indexes of the names that are UNUSABLE, and of those that are None."""
    # Compared with text alone, in C: where keys are optional, this is done for each record.
    if len(list(filter(None, names))) + names.count("") == len(names):
        return
    unusable.update(index for index, name in enumerate(names) if name is UNUSABLE)
    not_text.update(index for index, name in enumerate(names) if name is None)


def unquoted(raw: RawValue) -> RawValue:
    """Returns the number that a text in quotes is, None for a missing one; any other value as it is.

    >>> unquoted("7"), unquoted("0.25"), unquoted("-"), unquoted("seven"), unquoted(7)
    (7, b'0.25', None, 'seven', 7)
    """
    if type(raw) is not str:
        return raw
    if raw in MISSING:
        return None
    number = number_in(raw)
    return raw if number is None else number


class TimeColumn:
    """The request's time in milliseconds; the record's Kafka time when the source maps no time field."""

    def __init__(self, field: TimeField | None, index: ColumnIndex) -> None:
        self._column = None if field is None else index.of(field.path)
        self._places = 0 if field is None else MS_PLACES.get(field.unit, 0)
        self._read_texts: Callable[[Sequence[RawValue]], Answers] | None = None
        unit = "" if field is None else field.unit
        if field is not None and unit == "rfc3339":
            zone = None if isinstance(field.zone, UnsetType) else ZoneInfo(field.zone)
            rfc3339_rule = time_rule(partial(rfc3339_ms, zone=zone) if zone else rfc3339_ms)
            self._read_texts = lambda column: list(map(rfc3339_rule, column))
        elif unit == "clf":  # without fractions: many requests have the same text
            self._read_texts = MemoizedRule(time_rule(clf_ms)).read

    def read(self, columns: Columns, kafka_ms: Sequence[int | None]) -> Answers:
        if self._column is None:
            return [None if ms is None or ms < 0 else ms for ms in kafka_ms]
        column = columns[self._column]
        if self._read_texts is not None:
            return self._read_texts(column)
        if (
            set(map(type, column)) == INTEGERS
            and min(column) > -FAST_TIME_MAX
            and max(column) < FAST_TIME_MAX
        ):
            factor, divisor = 10 ** max(0, self._places), 10 ** max(0, -self._places)
            return column if factor == divisor else [raw * factor // divisor for raw in column]
        return [self._ms(raw) for raw in column]

    def _ms(self, raw: RawValue) -> int | None:
        raw = unquoted(raw)
        ms = scaled(raw, self._places) if type(raw) is int or type(raw) is bytes else None
        return ms if ms is not None and -MS_MAX <= ms < MS_MAX else None


class NumberColumn:
    """A number in its smallest unit, from 0 to 2**53, with or without quotes."""

    def __init__(self, mapping: SourceMapping, name: str, index: ColumnIndex) -> None:
        """A field that the source does not map, or not as a number, reads as an empty column."""
        field = mapping.fields.get(name)
        self._column = None
        if isinstance(field, NumberField):
            self._column = index.of(field.path)
            self._is_whole, self._default = field.kind == "whole", field.default
            self._places = {"whole": 0, "decimal": 6, "money": 9}.get(field.kind, MICRO_PLACES[field.unit])
            self._rule = MemoizedRule(self._number, NUMBER_TYPES)

    def read(self, columns: Columns) -> Answers:
        if self._column is None:
            return []
        column = columns[self._column]
        unscaled = self._places == 0 and set(map(type, column)) == INTEGERS
        return (
            column if unscaled and min(column) >= 0 and max(column) <= VALUE_MAX else self._rule.read(column)
        )

    def _number(self, raw: RawValue) -> int | None:
        raw = unquoted(raw)
        if raw is None:
            return self._default
        if type(raw) is not int and (self._is_whole or type(raw) is not bytes):
            return None
        number = scaled(raw, self._places)
        return number if number is not None and 0 <= number <= VALUE_MAX else None


class WeightColumn:
    """The number of requests that each record stands for, from 0 to 2**53. A missing one is 1."""

    def __init__(self, mapping: SourceMapping, index: ColumnIndex) -> None:
        """Without a weight it reads as an empty column. Raises ValueError where that is not a number."""
        self._column = None
        if isinstance(mapping.weight, str):
            field = mapping.fields.get(mapping.weight)
            if not isinstance(field, NumberField) or field.kind != "whole":
                raise ValueError(f"weight: {mapping.weight} is not mapped as a whole number")
            self._column = index.of(field.path)
            self._missing = None if field.default is None else 1
            self._rule = MemoizedRule(self._weight, NUMBER_TYPES)

    def read(self, columns: Columns) -> Answers:
        if self._column is None:
            return []
        column = columns[self._column]
        are_whole = set(map(type, column)) == INTEGERS
        return (
            column if are_whole and min(column) >= 0 and max(column) <= VALUE_MAX else self._rule.read(column)
        )

    def _weight(self, raw: RawValue) -> int | None:
        raw = unquoted(raw)
        if raw is None:
            return self._missing
        return raw if type(raw) is int and 0 <= raw <= VALUE_MAX else None


class IdColumn:
    """The text of the event's id; "" where a record has none that can be used."""

    def __init__(self, mapping: SourceMapping, index: ColumnIndex) -> None:
        """Without ids it reads as an empty column. Raises ValueError where the field is not a text field."""
        self._column = None
        rule = mapping.event_ids
        if rule is not None:
            field = mapping.fields.get(rule.field)
            if not isinstance(field, TextField):
                raise ValueError(f"id: {rule.field} is not mapped as a text field")
            self._column = index.of(field.path)

    def read(self, columns: Columns) -> list[str]:
        if self._column is None:
            return []
        column = columns[self._column]
        if set(map(type, column)) == {str}:
            # Ids do not repeat, so nothing is memoized; most columns are returned as they are.
            return ["" if raw == DASH else raw for raw in column] if DASH in column else column
        return [as_event_id(raw) for raw in column]


class ConditionColumn:
    """Whether all of some conditions hold; None where a value cannot be compared.

    A condition on a field that the source does not map never holds.
    """

    def __init__(self, mapping: SourceMapping, conditions: Sequence[Condition], index: ColumnIndex) -> None:
        self._rules: list[tuple[int, MemoizedRule | RouteConditionRule]] | None = []
        for condition in conditions:
            field = mapping.fields.get(condition.field)
            if field is None:
                self._rules = None
                break
            rule = condition_rule(field, condition, mapping.name_bytes_max)
            self._rules.append((index.of(field.path), rule))

    def read(self, columns: Columns) -> Answers:
        """Returns an empty list without conditions."""
        if self._rules is None:
            return [False] * len(columns[0])
        answers = [rule.read(columns[column]) for column, rule in self._rules]
        if len(answers) < 2:
            return answers[0] if answers else []
        return [None if None in row else all(row) for row in zip(*answers, strict=True)]


class TextColumn:
    """The text of a dimension; "" where the record or its whole source lacks the field."""

    def __init__(
        self, mapping: SourceMapping, dimension: Dimension, index: ColumnIndex, digests: Digests = NO_DIGESTS
    ) -> None:
        field = mapping.fields.get(dimension.field)
        self._column = None if field is None else index.of(field.path)
        if field is None:
            self._rule = None
        elif dimension.network is None:
            self._rule = text_rule(field, mapping.name_bytes_max, digests)
        else:
            self._rule = network_rule(field, *dimension.network)

    def read(self, columns: Columns) -> Answers:
        if self._column is None or self._rule is None:
            return [""] * len(columns[0])
        return self._rule.read(columns[self._column])


class FactColumn:
    """A fact about the caller; "" where a record states none, UNUSABLE where its value cannot be one."""

    def __init__(
        self, mapping: SourceMapping, name: str, index: ColumnIndex, digests: Digests = NO_DIGESTS
    ) -> None:
        """Raises ValueError where the mapping has no such text field; SecretMissing."""
        field = mapping.fields.get(name)
        if field is None:
            raise ValueError(f"facts: the field {name} is not mapped")
        self._column = index.of(field.path)
        self._rule = fact_rule(name, field, mapping.name_bytes_max, digests)

    def read(self, columns: Columns) -> Answers:
        return self._rule.read(columns[self._column])


class DistinctColumn:
    """The digest of a field's text, and NO_VALUE where a record lacks the field."""

    def __init__(
        self, mapping: SourceMapping, name: str, index: ColumnIndex, digests: Digests = NO_DIGESTS
    ) -> None:
        """A field that the source does not map reads as an empty column."""
        field = mapping.fields.get(name)
        self._column = None
        if field is not None:
            self._column = index.of(field.path)
            self._routes = (
                text_rule(field, mapping.name_bytes_max) if isinstance(field, ResourceField) else None
            )
            self._rule = distinct_rule(field, digests)

    def read(self, columns: Columns) -> Answers:
        if self._column is None:
            return []
        column = columns[self._column]
        return self._rule.read(column if self._routes is None else self._routes.read(column))
