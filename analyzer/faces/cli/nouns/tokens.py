"""`gatelock upkeep tokens`: tokens for access over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.config.values import NAME
from analyzer.faces.cli.confirmation import require_consent
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import ConfigOption, JsonOption, ReasonOption, open_database, parse_length_ms
from analyzer.faces.cli.output import json_lines, outcome, say, table
from analyzer.gates.gate_reports import reporting_gates
from analyzer.kernel.database.clock import instant
from analyzer.kernel.sentences import plural
from analyzer.kernel.tokens import SCOPES, stored_tokens
from analyzer.kernel.tokens import create as create_token
from analyzer.kernel.tokens import revoke as revoke_token
from gatekeeper.feed.feed_json import time_text

if TYPE_CHECKING:
    from analyzer.kernel.database.engine import Engine


LISTED_MAX = 5
EXPIRES_MAX_DAYS = 100 * 366  # more is probably a typing error

TokenName = Annotated[
    str,
    Argument(metavar="NAME", help="The token's name: one for each application, such as shop."),
]


def create(
    context: Context,
    name: TokenName,
    scope: Annotated[
        str,
        Option(
            metavar="SCOPE",
            help="read (gates, monitors), callers (use of callers), view (pages), operate, admin; each "
            "with those before it.",
        ),
    ],
    expires: Annotated[
        str | None,
        Option(metavar="LENGTH", help="Time until it expires: 12h, 90d. Default: until it is revoked."),
    ] = None,
    reason: ReasonOption = "",
    yes: Annotated[
        bool, Option("--yes", help="Create the first token without asking, although gates have none.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Create a token; it is shown only once.

    Only a digest of it is stored. From the first one on, every request for locks needs one, also when all are
    revoked. Before the first one is created, the gates that ask without are named.

    Example: gatelock upkeep tokens create shop --scope read --expires 90d
    """
    if not NAME.fullmatch(name):
        raise usage_error(
            f"{name!r} is not a valid name: use up to 64 letters, digits, points, hyphens and underscores"
        )
    token_scope = next((word for word in SCOPES if word == scope), None)
    if token_scope is None:
        raise usage_error(f"{scope!r} is not a scope: use {', '.join(SCOPES)}")
    expires_ms = None if expires is None else parse_length_ms("--expires", expires, EXPIRES_MAX_DAYS)
    with reporting_errors(), open_database(context, config) as engine:
        if not yes:
            _require_consent(engine)
        token = create_token(engine, name, token_scope, expires_ms, operator_name(), reason)
        outcome(token, {"name": name, "scope": scope, "token": token}, as_json=json)


def _require_consent(engine: Engine) -> None:
    """Asks before the first token if gates report, which have none. Exits with 2 unless confirmed."""
    if not stored_tokens(engine).is_open:
        return
    gates = [gate.status for gate in reporting_gates(engine) if not gate.is_silent]
    if not gates:
        return
    listed = sorted(f"{gate.application} {gate.instance}".strip() for gate in gates)[:LISTED_MAX]
    names = ", ".join(listed)
    more = f" and {len(gates) - LISTED_MAX} more" if len(gates) > LISTED_MAX else ""
    sentence = f"{plural(len(gates), 'gate')} without a token will be refused over HTTP: {names}{more}"
    require_consent(
        sentence, "Create the first token?", "give them the token in time, and confirm with --yes"
    )


def list_(context: Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the tokens, without their values.

    Lists for each token its scope, its time of creation, and its expiry.

    Example: gatelock upkeep tokens list
    """
    with reporting_errors(), open_database(context, config) as engine:
        tokens = stored_tokens(engine)
        names = ["name", "scope", "made", "until", "state"]
        rows = [
            (
                token.name,
                token.scope,
                time_text(instant(token.made_ms)),
                None if token.until_ms is None else time_text(instant(token.until_ms)),
                "good" if tokens.is_valid(token) else "expired",
            )
            for token in tokens.tokens
        ]
        if json:
            json_lines(dict(zip(names, row, strict=True)) for row in rows)
        else:
            table(names, [[cell or "" for cell in row] for row in rows], "no token exists")


def revoke(
    context: Context,
    name: TokenName,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a token; servers reject it within two seconds.

    Exit code 1 if no token has this name.

    Example: gatelock upkeep tokens revoke shop --reason "it leaked"
    """
    with reporting_errors(), open_database(context, config) as engine:
        if not revoke_token(engine, name, operator_name(), reason):
            say(f"no token is named {name}: `gatelock upkeep tokens list` shows the names", err=True)
            raise Exit(FOUND)
        outcome(f"{name} is revoked", {"name": name}, as_json=json)
