"""The truth about a partition: its ledger, and the ids by which records are duplicates."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.plan.plan import Plan
from tests.simulation.kafka_log import Expected


@dataclass
class Ledger:
    """The records of one partition, by their outcome."""

    next: int = 0
    seen: int = 0
    counted: int = 0
    dead: int = 0
    duplicate: int = 0


@dataclass
class KnownIds:
    """The times at which each caller and id was counted, by partition.

    Stories keep away from the end of the horizon, which is as long as a generation lasts.
    """

    counted_ms: dict[tuple[int, str, str], int] = field(default_factory=dict)

    def is_repeated(self, plan: Plan, partition: int, request: Expected, kafka_ms: int) -> bool:
        """Whether the record is a duplicate; remembers it if not."""
        rules = [mapping.event_ids for mapping in plan.sources.values()]
        if not request.id or None in rules:
            return False
        [rule] = rules
        at = partition, request.caller, request.id
        if rule and kafka_ms - self.counted_ms.get(at, kafka_ms - rule.horizon_ms) < rule.horizon_ms:
            return True
        self.counted_ms[at] = kafka_ms
        return False
