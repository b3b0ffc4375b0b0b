"""Tokens: shown once, stored as digests, limited by scope and time."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from analyzer.kernel import tokens
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import tokens as table

HOUR_MS = 3_600_000


def test_a_token_is_recognised_and_only_its_digest_is_stored(engine: sa.Engine) -> None:
    token = tokens.create(engine, "shop", "read", None, "ann@desk", "the web shop")
    assert token.startswith("gatelock_")
    found = tokens.stored_tokens(engine).bearer(token)
    assert found is not None
    assert (found.name, found.scope, found.until_ms) == ("shop", "read", None)
    with engine.connect() as db:
        stored = repr(db.execute(sa.select(table)).all())
    assert token.removeprefix("gatelock_") not in stored
    [event] = entries(engine)
    assert event[1:5] == ("ann@desk", "token created", "shop (read)", "the web shop")


@pytest.mark.parametrize("text", ["", "gatelock_", "x" * 10_000, "ü\udc80", "GATELOCK_"])
def test_an_unknown_token_has_no_bearer(engine: sa.Engine, text: str) -> None:
    token = tokens.create(engine, "shop", "read", None, "ann", "")
    known = tokens.stored_tokens(engine)
    assert known.bearer(text) is None
    assert known.bearer(token[:-1]) is None
    assert known.bearer(token + " ") is None


def test_a_token_ends_by_the_databases_clock(engine: sa.Engine) -> None:
    token = tokens.create(engine, "shop", "read", HOUR_MS, "ann", "")
    known = tokens.stored_tokens(engine)
    [stored] = known.tokens
    assert stored.until_ms is not None
    assert abs(stored.until_ms - known.now_ms - HOUR_MS) < 60_000
    assert known._replace(now_ms=stored.until_ms - 1).bearer(token) == stored
    assert known._replace(now_ms=stored.until_ms).bearer(token) is None


def test_a_revoked_token_is_deleted_and_its_name_is_free(engine: sa.Engine) -> None:
    old = tokens.create(engine, "shop", "read", None, "ann", "")
    assert tokens.revoke(engine, "shop", "bob@desk", "it leaked")
    assert not tokens.revoke(engine, "shop", "bob@desk", "it leaked")
    new = tokens.create(engine, "shop", "admin", None, "ann", "")
    known = tokens.stored_tokens(engine)
    assert known.bearer(old) is None
    assert known.bearer(new) == known.tokens[0]
    assert sorted(event.act for event in entries(engine)) == [
        "token created", "token created", "token revoked",
    ]  # fmt: skip


def test_a_second_token_of_the_same_name_is_an_error(engine: sa.Engine) -> None:
    token = tokens.create(engine, "shop", "read", None, "ann", "")
    with pytest.raises(tokens.TokenNameTaken, match="a token named shop"):
        tokens.create(engine, "shop", "admin", None, "eve", "")
    known = tokens.stored_tokens(engine)
    assert known.bearer(token) == known.tokens[0]
    assert len(list(entries(engine))) == 1


def test_the_number_of_tokens_is_limited(engine: sa.Engine) -> None:
    with writing(engine) as db:
        rows = [{"name": f"t{n}", "scope": "read", "made_ms": 0} for n in range(tokens.TOKENS_MAX)]
        db.execute(sa.insert(table), rows)
    with pytest.raises(tokens.TooManyTokens, match="revoke some"):
        tokens.create(engine, "one more", "read", None, "ann", "")


@pytest.mark.parametrize(
    ("scope", "needed", "is_allowed"),
    [
        ("read", "read", True),
        ("read", "operate", False),
        ("operate", "read", True),
        ("operate", "admin", False),
        ("admin", "admin", True),
        ("of a later version", "read", False),
    ],
)
def test_each_scope_includes_the_lower_ones(scope: str, needed: tokens.TokenScope, is_allowed: bool) -> None:
    assert tokens.Token("shop", "", scope, 0, None).allows(needed) is is_allowed
