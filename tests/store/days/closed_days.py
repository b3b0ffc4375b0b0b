"""Two closed days of two callers, with what came late, for tests of what was changed by hand."""

from __future__ import annotations

import sqlalchemy as sa

from analyzer.billing.audit.day_differences import AuditedDay
from analyzer.billing.audit.examined_days import examine_day
from analyzer.billing.days.by_hand import Correction, correct
from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_digest import content_digest
from analyzer.billing.days.day_rows import Day, add_day, stored_days
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.billing_tables import days
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from tests.store.flushing import ACME, ANN, flush, now_s
from tests.support.tampered_tables import tamper

DAY_S = 86_400
PLAN = make_plan(["caller+resource"], [Meter("slowest", "took", "max")], [])
KEY = DigestKey(b"0123456789abcdef")


class ClosedDays:
    """Two closed days, each with rows of two callers; the second has what came late of the first.

    Args:
        engine: Of a database without counts.
        key: Of the digests.
    """

    def __init__(self, engine: sa.Engine, key: DigestKey = KEY) -> None:
        self.engine, self.key = engine, key
        self.store = SqlStore(engine, "analyzer:1")
        self.store.activate(PLAN)
        at_s = now_s(engine) - 3 * DAY_S
        with writing(engine) as db:
            self.first = add_day(db, "UTC", at_s)
        for number in range(3):
            self.count(ACME, 5 + number, self.first.begin_s + number * DAY_S)
            self.count(ANN, 7, self.first.begin_s + number * DAY_S + 3_600)
        self.close()
        self.count(ACME, 2, self.first.begin_s + 60)
        correct(engine, self.day(0), Correction("caller", ANN, "", "requests", -3), "ann@ops", "a test call")
        self.close()

    def count(self, key: str, value: int, at_s: int) -> None:
        at_s -= at_s % 60
        rows = [
            CountRow(grouping, key, resource, meter, 60, at_s, amount, 0)
            for grouping, resource in (("caller", ""), ("caller+resource", "/v1/a"))
            for meter, amount in (("requests", value), ("slowest", 10 * value))
        ]
        flush(self.store, PLAN, rows)

    def close(self, key: DigestKey | None = None) -> None:
        billing = Billing(groupings=("caller", "caller+resource"), grace_s=0.0, key=key or self.key)
        now_ms = now_s(self.engine) * 1000
        assert DayClosing(self.engine, billing, lambda _: {}, lambda: "mark", lambda: now_ms).step() == 1

    def day(self, number: int) -> Day:
        with reading(self.engine) as db:
            return stored_days(db, days.c.state == "closed")[number]

    def audit(self, number: int, *keys: DigestKey) -> AuditedDay:
        return examine_day(self.engine, self.day(number), keys or [self.key])

    def kinds(self, number: int, *keys: DigestKey) -> set[str]:
        return {one.kind for one in self.audit(number, *keys).differences}

    def forge(self, number: int, key: DigestKey) -> None:
        """Writes a digest by this key that fits the rows of a day as they are now."""
        day = self.day(number)
        with reading(self.engine) as db:
            digest = key.chained(content_digest(db, day), day.digest_before)
        row = f"digest = '{digest}', digest_key = '{key.fingerprint}'"
        tamper(self.engine, f"update days set {row} where id = {day.id}")
