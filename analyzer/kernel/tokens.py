"""Bearer tokens for the HTTP interface, and their scopes. Only digests are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal, NamedTuple, get_args

import sqlalchemy as sa

from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, insert, reading, writing
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.tables.schema import events, tokens

TokenScope = Literal["read", "callers", "view", "operate", "admin"]
SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)  # each includes those before it

PREFIX = "gatelock_"  # lets secret scanners recognise a token
SECRET_BYTES = 32
CREATED = "token created"  # in the audit log, which is never pruned
TOKENS_MAX = 1_000  # each request is compared with all of them


class TokenNameTaken(AnalyzerError):
    """A token of this name exists."""


class TooManyTokens(AnalyzerError):
    """The maximum number of tokens exists."""


class Token(NamedTuple):
    """A stored token: everything but the token itself."""

    name: str
    digest: str
    scope: str
    made_ms: int
    until_ms: int | None  # None: until it is revoked

    def allows(self, scope: TokenScope) -> bool:
        return self.scope in SCOPES and SCOPES.index(self.scope) >= SCOPES.index(scope)


class TokenList(NamedTuple):
    """All tokens, and the database's time when they were read."""

    tokens: tuple[Token, ...]
    now_ms: int
    were_made: bool = False  # whether there ever was one, also when all of them are revoked by now

    @property
    def is_open(self) -> bool:
        """Whether requests from this machine need no token: none was ever made."""
        return not self.tokens and not self.were_made

    def bearer(self, text: str) -> Token | None:
        """Returns the token that `text` is; None for an unknown or expired one."""
        digest = token_digest(text)
        # Compares all of them, so that the duration reveals nothing about a near match.
        matching = [token for token in self.tokens if hmac.compare_digest(token.digest, digest)]
        return next(filter(self.is_valid, matching), None)

    def by_digest(self, digest: str) -> Token | None:
        """Returns the token with this digest; None if it was revoked or has expired."""
        matching = [token for token in self.tokens if token.digest == digest]
        return next(filter(self.is_valid, matching), None)

    def is_valid(self, token: Token) -> bool:
        return token.until_ms is None or self.now_ms < token.until_ms


def token_digest(token: str) -> str:
    # Without salt or stretching: 256 random bits cannot be guessed at any speed.
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def create(
    engine: sa.Engine, name: str, scope: TokenScope, expires_ms: int | None, who: str, reason: str
) -> str:
    """Creates a token and returns it; it cannot be read later. Valid for `expires_ms`, or until revoked.

    Raises TokenNameTaken, TooManyTokens, StoreAway.
    """
    token = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    with writing(engine) as db:
        if db.execute(sa.select(sa.func.count()).select_from(tokens)).scalar_one() >= TOKENS_MAX:
            raise TooManyTokens(
                f"there are {TOKENS_MAX} tokens, the maximum: revoke some that are not in use"
            )
        row = {
            "name": name,
            "digest": token_digest(token),
            "scope": scope,
            "made_ms": NowMs(),
            "until_ms": None if expires_ms is None else NowMs() + expires_ms,
        }
        added = insert(db, tokens).values(row).on_conflict_do_nothing().returning(tokens.c.name)
        if db.execute(added).first() is None:
            raise TokenNameTaken(f"there is a token named {name}: revoke it first, or choose another name")
        record(db, who, CREATED, f"{name} ({scope})", reason)
    return token


def revoke(engine: sa.Engine, name: str, who: str, reason: str) -> bool:
    """Revokes the token of this name at once; returns whether there was one. Raises StoreAway."""
    with writing(engine) as db:
        if not db.execute(sa.delete(tokens).where(tokens.c.name == name)).rowcount:
            return False
        record(db, who, "token revoked", name, reason)
        return True


def stored_tokens(engine: sa.Engine) -> TokenList:
    """Returns every token, by name. Raises StoreAway."""
    with reading(engine) as db:
        rows = db.execute(sa.select(tokens).order_by(tokens.c.name))
        stored = tuple(Token(**row._mapping) for row in rows)
        were_made = bool(stored) or bool(db.scalar(sa.select(sa.exists().where(events.c.act == CREATED))))
        return TokenList(stored, clock_ms(db), were_made)
