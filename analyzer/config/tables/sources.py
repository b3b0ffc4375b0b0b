"""`[[sources]]`: the topics and files that are read, and the mapping of their records."""

from __future__ import annotations

from itertools import compress
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.fields import FieldsTable
from analyzer.config.tables.named_values import GroupingName
from analyzer.config.values import (
    DAY_S,
    HOUR_S,
    ConditionTable,
    Names,
    Text,
    duration_between,
    integer_between,
    known_word,
    known_words,
    several,
)
from analyzer.counting.records.envelopes import ENVELOPES
from analyzer.counting.records.formats import FORMATS
from analyzer.plan.mapping import (
    COUNT_ALL,
    FACTS,
    NO_ENVELOPE,
    NO_FACTS,
    NO_ID,
    NO_WEIGHT,
    EventIdRule,
    SourceMapping,
)
from analyzer.plan.mapping import Field as MappedField
from gatekeeper.identity import NameDigest

if TYPE_CHECKING:
    EnvelopeName = str
else:
    EnvelopeName = Literal[tuple(ENVELOPES)]
EnvelopeNames = Annotated[
    tuple[Annotated[EnvelopeName, known_words(EnvelopeName)], ...], BeforeValidator(several)
]
StartPosition = Literal["earliest", "latest"]
FactName = Literal["plan", "tenant", "zone", "anchor", "tenant_plan", "tenant_zone", "tenant_anchor"]
FactNames = tuple[Annotated[FactName, known_words(FactName)], ...]


class SourceTable(ConfigTable):
    """A stream of request records: a topic, or a file that is followed."""

    name: Text = ""
    topic: Text | None = None
    file: Text | None = None
    format: Annotated[str, BeforeValidator(lambda value: known_word(value, tuple(FORMATS)))] = "json"
    envelope: EnvelopeNames = ()  # what shippers put around each record, from the outside in
    caller: Names | None = None
    deny_if: ConditionTable = Field(default_factory=dict)
    # Conditions under which a request counts under its caller's name; and whether each record's caller is the
    # authenticated one, a statement for `gatelock check` that changes no count.
    count_if: ConditionTable = Field(default_factory=dict)
    authenticated: bool = False
    start: Annotated[StartPosition, known_words(StartPosition)] = "earliest"
    # The fields that state facts about callers and tenants; None: those among FACTS that are mapped.
    facts: FactNames | None = None
    weight: Text | None = None  # the field with the number of requests that a record stands for
    # The field with the event's id: each (caller, id) counts once within the horizon, in seconds. At most so
    # many ids are remembered for each partition.
    id: Text | None = None
    id_horizon: Annotated[float, duration_between(60, 7 * DAY_S)] = HOUR_S
    ids_max: Annotated[int, integer_between(1_000, 5_000_000)] = 2_000_000
    host: Text | None = None  # of the file, where several machines share a database
    groupings: tuple[GroupingName, ...] = ()
    # Both are for each partition: rejected records in a row, and callers that are counted by name.
    stop_after_rejected: Annotated[int, integer_between(1, 1 << 31)] = 1_000
    callers_per_hour: Annotated[int, integer_between(1, 10_000_000)] = 100_000
    fields: FieldsTable = Field(default_factory=FieldsTable)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, value: Any) -> Any:
        """Defaults that depend on other keys: the name, and the fields of the format."""
        if not isinstance(value, dict):
            return value
        locations = [value[key] for key in ("topic", "file") if isinstance(value.get(key), str)]
        name = locations[0] if "topic" in value and locations else PurePath(*locations[:1]).name
        filled: dict[str, Any] = ({"name": name} if name else {}) | value
        log_format = FORMATS.get(str(filled.get("format")))
        if log_format is not None and log_format.table and isinstance(filled.get("fields", {}), dict):
            filled["fields"] = dict(log_format.table) | filled.get("fields", {})
        return filled

    @property
    def callers(self) -> tuple[str, ...]:
        """Fields that identify the caller; by default the mapped ones of the format's.

        The user of a combined line is not among them: servers write there what a client says, also of a login
        that failed.
        """
        return self.caller or tuple(name for name in FORMATS[self.format].caller if name in self.fields.names)

    @property
    def stated(self) -> tuple[str, ...]:
        """The facts about callers and tenants that its records state."""
        is_wanted = [self.facts is None or name in self.facts for name in FACTS]
        return tuple(name for name in compress(FACTS, is_wanted) if name in self.fields.plain)

    @property
    def weights(self) -> frozenset[str]:
        """The field of the weight, if it has one: a number, also where it is not declared so."""
        return frozenset() if self.weight is None else frozenset({self.weight})

    def mapping(
        self, metered: frozenset[str], digest: NameDigest | None, *, pseudonyms: bool = False
    ) -> SourceMapping:
        """The mapping that the counter reads this source by; the fields in `metered` are numbers.

        With `pseudonyms`, fields that name callers have a digest whether or not they state one.
        """
        metered |= self.weights
        fields: dict[str, MappedField] = {
            name: entry.field(
                is_metered=name in metered,
                digest=digest if entry.digest or (pseudonyms and name in self.callers) else None,
            )
            for name, entry in self.fields.plain.items()
        }
        if self.fields.address is not None:
            fields["address"] = self.fields.address.field()
        if self.fields.resource is not None:
            fields["resource"] = self.fields.resource.field()
        time = self.fields.time
        return SourceMapping(
            format=self.format,
            envelope=self.envelope or NO_ENVELOPE,
            time=None if time is None else time.field(),
            caller=self.callers,
            fields=fields,
            deny_if=tuple(values.condition(name) for name, values in self.deny_if.items()),
            count_if=tuple(values.condition(name) for name, values in self.count_if.items()) or COUNT_ALL,
            rejected_in_row_max=self.stop_after_rejected,
            callers_max=self.callers_per_hour,
            weight=NO_WEIGHT if self.weight is None else self.weight,
            facts=self.stated or NO_FACTS,
            id=NO_ID
            if self.id is None
            else EventIdRule(self.id, round(self.id_horizon * 1000), self.ids_max),
        )
