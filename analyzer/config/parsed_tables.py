"""The tables of a configuration that are valid by themselves, and what checks between them share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from analyzer.config.tables.alerts import AlertingTable, AlertTable
from analyzer.config.tables.analyzer import AnalyzerTable, PrivacyTable
from analyzer.config.tables.billing import BillingTable
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.limit_overrides import OverrideTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.named_values import GroupingTable
from analyzer.config.tables.policies import PolicyTable
from analyzer.config.tables.retention import RetentionTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import closest
from analyzer.kernel.refused_values import quote


class ParsedTables(NamedTuple):
    """The valid tables of a configuration; lists keep the indexes that their tables have in the file."""

    kafka: KafkaTable
    analyzer: AnalyzerTable
    privacy: PrivacyTable
    billing: BillingTable
    retention: RetentionTable
    sources: Mapping[int, SourceTable]
    groupings: Mapping[int, GroupingTable]
    meters: Mapping[int, MeterTable]
    policies: Mapping[int, PolicyTable]
    overrides: Mapping[int, OverrideTable]
    alerting: AlertingTable
    alerts: Mapping[int, AlertTable]

    @property
    def named_values(self) -> dict[str, str]:
        """The field of each named value."""
        return {grouping.name: grouping.field for grouping in self.groupings.values()}

    @property
    def metered(self) -> frozenset[str]:
        """Fields whose sum or maximum some meter takes: numbers, even where they are not declared so."""
        return frozenset(
            meter.number_field for meter in self.meters.values() if meter.number_field is not None
        )


def listed(sources: Iterable[SourceTable]) -> str:
    return "[[sources]] " + ", ".join(quote(source.name) for source in sources)


def map_it(name: str, names: Iterable[str] = ()) -> str:
    match = closest(name, names)
    if match is not None and match != name:
        return f"did you mean {quote(match)}?"
    missing = "a record without this field counts under the empty name, or as 0"
    return f'add it to [sources.fields]: {name} = "PATH"; {missing}'
