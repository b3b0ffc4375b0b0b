"""The audit log: manual acts of operators, recorded in the transaction of the act."""

from __future__ import annotations

from contextlib import suppress

import sqlalchemy as sa

from analyzer.kernel.database.audit_log import entries, record
from analyzer.kernel.database.engine import writing


def test_an_act_is_recorded_with_operator_object_and_reason(engine: sa.Engine) -> None:
    with writing(engine) as db:
        record(db, "ann@desk", "gap accepted", "access-log[3]", "disk was full")
    [event] = entries(engine)
    assert event[1:5] == ("ann@desk", "gap accepted", "access-log[3]", "disk was full")
    later_ms = round(event.at.timestamp() * 1000) + 1
    assert list(entries(engine, later_ms)) == []


def test_an_act_that_failed_is_not_recorded(engine: sa.Engine) -> None:
    with suppress(ZeroDivisionError), writing(engine) as db:
        record(db, "ann@desk", "gap accepted", "access-log[3]", "disk was full")
        raise ZeroDivisionError
    assert list(entries(engine)) == []
