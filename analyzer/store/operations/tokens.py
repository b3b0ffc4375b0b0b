"""Bearer tokens: who may ask over HTTP, and for what. Only digests are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal, NamedTuple, get_args

import sqlalchemy as sa

from analyzer.errors import AnalyzerError
from analyzer.store.database.audit_log import record
from analyzer.store.database.clock import clock_ms
from analyzer.store.database.engine import NowMs, insert, reading, writing
from analyzer.store.database.schema import tokens

TokenScope = Literal["read", "operate", "admin"]
SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)  # each may do what those before it may

PREFIX = "gatelock_"  # so that whoever scans files for secrets knows one when it sees it
SECRET_BYTES = 32
TOKENS_MAX = 1_000  # each question is compared with all of them


class TokenNameTaken(AnalyzerError):
    """There is a token of this name."""


class TooManyTokens(AnalyzerError):
    """There are as many tokens as there may be."""


class Token(NamedTuple):
    """What is known of a token: not the token itself."""

    name: str
    digest: str
    scope: str
    made_ms: int
    until_ms: int | None  # None: until it is revoked

    def allows(self, scope: TokenScope) -> bool:
        return self.scope in SCOPES and SCOPES.index(self.scope) >= SCOPES.index(scope)


class TokenList(NamedTuple):
    """Every token that was made, and what time it was in the database when they were read."""

    tokens: tuple[Token, ...]
    now_ms: int

    def bearer(self, given: str) -> Token | None:
        """The token that `given` is; None for a stranger, and for one whose time is over."""
        digest = digest_of(given)
        # All of them, whatever is found: how long it takes tells nothing of which was nearly right.
        found = [token for token in self.tokens if hmac.compare_digest(token.digest, digest)]
        return next(filter(self.is_good, found), None)

    def is_good(self, token: Token) -> bool:
        return token.until_ms is None or self.now_ms < token.until_ms


def digest_of(token: str) -> str:
    # Without salt or stretching: nobody guesses 256 random bits, however fast the guesses come.
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def create(
    engine: sa.Engine, name: str, scope: TokenScope, expires_ms: int | None, who: str, why: str
) -> str:
    """A new token, which is told here and nowhere else, good for `expires_ms` from now or until it is
    revoked. Raises NameTaken, TooManyTokens, StoreAway."""
    token = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    with writing(engine) as db:
        if db.execute(sa.select(sa.func.count()).select_from(tokens)).scalar_one() >= TOKENS_MAX:
            raise TooManyTokens(f"there are {TOKENS_MAX} tokens: revoke some that nobody uses")
        row = {
            "name": name,
            "digest": digest_of(token),
            "scope": scope,
            "made_ms": NowMs(),
            "until_ms": None if expires_ms is None else NowMs() + expires_ms,
        }
        added = insert(db, tokens).values(row).on_conflict_do_nothing().returning(tokens.c.name)
        if db.execute(added).first() is None:
            raise TokenNameTaken(f"there is a token named {name}: revoke it first, or choose another name")
        record(db, who, "token created", f"{name} ({scope})", why)
    return token


def revoke(engine: sa.Engine, name: str, who: str, why: str) -> bool:
    """Whether there was a token of this name; it is refused from now on. Raises StoreAway."""
    with writing(engine) as db:
        if not db.execute(sa.delete(tokens).where(tokens.c.name == name)).rowcount:
            return False
        record(db, who, "token revoked", name, why)
        return True


def known(engine: sa.Engine) -> TokenList:
    """Every token, by name. Raises StoreAway."""
    with reading(engine) as db:
        rows = db.execute(sa.select(tokens).order_by(tokens.c.name))
        held = tuple(Token(**row._mapping) for row in rows)
        return TokenList(held, clock_ms(db))
