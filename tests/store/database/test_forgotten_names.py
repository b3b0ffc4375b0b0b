"""After a caller is forgotten, all that a database consists of has its name nowhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import sqlalchemy as sa

from analyzer.billing.audit.examined_days import examine_day
from analyzer.billing.days.by_hand import Correction, correct
from analyzer.billing.days.day_rows import stored_days
from analyzer.callers.caller_changes import set_callers
from analyzer.callers.forgetting.forget_caller import forget_caller
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.kernel.database.engine import reading
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.tables.billing_tables import days
from tests.store.operations.test_forgetting import BOB, DAY_S, NAME, Installation
from tests.support.servers.postgres import dsn_of, find_programs

# As text, and as the hexadecimal digits of bytes in a dump. Another caller is called acme-2.
NAMED = re.compile(rb"acme(?!-2)|61636d65(?!2d32)")


def all_bytes(engine: sa.Engine) -> bytes:
    """Returns a dump of the database, or its file with its write-ahead log, as stopped analyzers leave it."""
    engine.dispose()  # the last connection to a file copies the log into it
    if engine.dialect.name == "sqlite":
        file = Path(str(engine.url.database))
        return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))
    url = engine.url.render_as_string(hide_password=False)
    dumped = subprocess.run(
        [find_programs() / "pg_dump", "--dbname", dsn_of(url)], capture_output=True, check=True
    )
    return dumped.stdout


def test_the_name_is_nowhere_after_forgetting_nor_after_its_records_come_again(
    engine: sa.Engine, store: SqlStore
) -> None:
    here = Installation(engine, store)
    here.fill()
    set_callers(engine, {BOB: Profile("free")}, "ann@here", "sold by acme", new_mark)
    with reading(engine) as db:
        [closed] = stored_days(db, days.c.state == "closed")
    for key in (NAME, BOB):
        correction = Correction("caller", key, "", "requests", -1)
        correct(engine, closed, correction, "ann@here", f"credit of {NAME}, a friend of acme")
    assert NAMED.search(all_bytes(engine)) is not None

    done = forget_caller(engine, NAME, "ann@here", "acme asked for it", new_mark)
    assert NAMED.findall(all_bytes(engine)) == []
    here.flush(here.request(NAME, "again"), here.request(NAME, "late again", DAY_S))
    here.flush(here.request(NAME, "unreadable", ts="yesterday"), b'{"key": "acme", "ts"')
    stored = all_bytes(engine)
    assert NAMED.findall(stored) == []
    assert done.pseudonym.encode() in stored
    assert b"(forgotten)" in stored or b"(forgotten)".hex().encode() in stored
    assert examine_day(engine, closed, [DigestKey()]).equal
