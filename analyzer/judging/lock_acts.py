"""Acts on locks: what operators read and do, by a command, over HTTP or on a page."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network
from itertools import chain
from pathlib import Path
from typing import Annotated

from analyzer.acting.act import ActContext, Done, Listing, ListRow, Note, NothingFound
from analyzer.acting.foreseen import Foreseen
from analyzer.acting.parameters import (
    AddressRange,
    CallerName,
    Fault,
    Length,
    OfText,
    OneOf,
    Param,
    SeriesFile,
    Since,
    Switch,
    Whole,
    network_scope,
)
from analyzer.callers.counted_names import has_kind, never_counted
from analyzer.config.tables.actions import rate_from_text
from analyzer.gates.gate_health import hits_by_lock, living_gates, met_locks
from analyzer.gates.gate_reports import reporting_gates
from analyzer.gates.unmet_locks import unmet_locks
from analyzer.judging.earned_notices import LASTS_S, percent
from analyzer.judging.locks.lock_answers import changed_fields, describe_action, lock_fields
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, clear_locks, extend_locks, set_locks
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.judging.locks.suspension import resume as resume_locks
from analyzer.judging.locks.suspension import suspend as suspend_locks
from analyzer.judging.locks.suspension import suspended_until
from analyzer.judging.sql.plans import plan_in_force
from analyzer.judging.sql.raised_notices import RaisedNotice, raised_notices
from analyzer.kernel.database.clock import instant, millis
from gatekeeper.feed.feed_json import time_text
from gatekeeper.model import WITHOUT_END, Lock, LockHits

SUSPENDED_MAX_DAYS = 30  # for longer, remove the gates from the applications
BY_HAND_MAX_DAYS = 366  # for longer, a policy
UNASKED_MAX = 10  # so many locks are cleared without a question
FILE_ROWS_MAX = 100_000
FILE_COLUMNS = ("scope", "key", "resource")
SCOPES = ("caller", "tenant", "address", "range", "resource", "everyone")

OfTenant = Annotated[str, Param(OfText(metavar="NAME"), "All requests of a tenant.", "acme")]
Address = Annotated[
    IPv4Network | IPv6Network,
    Param(AddressRange(), "An address or a range: 192.0.2.7, 203.0.113.0/24.", "203.0.113.0/24"),
]
Resource = Annotated[
    str,
    Param(
        OfText(metavar="ROUTE"),
        "All requests of a resource; with another one, only those of it.",
        "/v1/export",
    ),
]
Everyone = Annotated[bool, Param(Switch(), "All requests.", False)]
File = Annotated[
    Path, Param(SeriesFile(), "Several at once: columns scope, key and, if wanted, resource.", "locks.csv")
]
OfPolicy = Annotated[str, Param(OfText(metavar="NAME"), "Only locks of this policy.", "daily")]
LockFor = Annotated[int, Param(Length(BY_HAND_MAX_DAYS), "Time from now until it ends: 30m, 2h, 7d.", "2h")]


def list_locks(
    context: ActContext,
    *,
    caller: CallerName | None = None,
    policy: OfPolicy | None = None,
    shadow: Annotated[
        bool, Param(Switch(), "Locks of policies in shadow, which no gate gets.", False)
    ] = False,
) -> Listing:
    """Show the locks in force, the latest end first.

    Lists for each lock its begin, end, policy, action, detail, and the requests that gates which report have
    denied by it since each of them started. While the locks are suspended, a line says so; so does one for
    each lock that no gate has met although requests of its caller are still counted.
    """
    key = None if caller is None else context.counted(caller)
    if (until := suspended_until(context.engine)) is not None:
        cure = "`gatelock locks resume --reason TEXT`"
        yield Note(f"no lock is enforced until {time_text(until)}: {cure}")
    locks = locks_in_force(context.engine, key, policy, in_shadow=shadow)
    first = next(locks, None)
    if first is None:
        _require_known(context, key, policy)
        return
    gates = living_gates(reporting_gates(context.engine))
    hits_by_key = {hits.at: (hits, number) for hits, number in hits_by_lock(gates)}
    for lock in chain([first], locks):
        hits, number = hits_by_key.get(lock.at, (LockHits(lock.at, 0, 0), 0))
        met = {"checks": hits.checks, "denials": hits.denials, "gates": number}
        cells = {
            "since": time_text(lock.began),
            "until": "no end" if lock.until >= WITHOUT_END else time_text(lock.until),
            "does": describe_action(lock),
            "denied": hits.denials if number else "",
        }
        place = (-millis(lock.until), lock.policy, lock.scope, lock.key, lock.resource)
        yield ListRow(place, lock_fields(lock) | {"met": met}, cells)
    if not shadow:
        for unmet in unmet_locks(context.engine, met_locks(gates), key=key, policy=policy):
            yield Note(unmet.sentence)


def _require_known(context: ActContext, key: str | None, policy: str | None) -> None:
    """Raises Fault for a policy that does not exist, NothingFound for a caller that was never counted."""
    plan = plan_in_force(context.engine)
    names = {stated.name for stated in context.settings.policies}
    names |= set() if plan is None else plan.policy_names
    context.require_name("policy", policy, names)
    if key is not None and (absence := never_counted(context.engine, key)) is not None:
        raise NothingFound(f"no lock is in force, and {absence}")


def lock(
    context: ActContext,
    caller: CallerName | None = None,
    *,
    for_: LockFor,
    tenant: OfTenant | None = None,
    address: Address | None = None,
    resource: Resource | None = None,
    everyone: Everyone = False,
    file: File | None = None,
    action: Annotated[str, Param(OneOf(["deny", "slow", "tag"]), "The effect.", "deny")] = "deny",
    status: Annotated[int, Param(Whole(400, 599), "HTTP status of denials.", 429)] = 429,
    rate: Annotated[
        str, Param(OfText(metavar="RATE"), "Admitted by each process with the action slow: 10/s.", "10/s")
    ]
    | None = None,
) -> Done:
    """Lock a client by hand, for a time.

    The lock stands beside those of policies, which are judged as before; the reason is what a refused client
    reads. Gates follow within one poll. Doing it again replaces the end.
    """
    effect = _effect(action, status, rate)
    series = _series(context, caller, tenant, address, resource, everyone=everyone, file=file)
    locks = set_locks(context.engine, series, for_, effect, context.by, new_mark)
    return _done(context, [(present, "set") for present in locks])


def extend(
    context: ActContext,
    caller: CallerName | None = None,
    *,
    for_: LockFor,
    tenant: OfTenant | None = None,
    address: Address | None = None,
    resource: Resource | None = None,
    everyone: Everyone = False,
    file: File | None = None,
    policy: OfPolicy | None = None,
) -> Done:
    """Let locks last longer: until a time from now.

    A lock of a policy ends as the policy says; one that is set by hand, with the same effect, lasts on. Exit
    code 1 if there is no lock that ends before.
    """
    series = _series(context, caller, tenant, address, resource, everyone=everyone, file=file)
    locks = extend_locks(context.engine, series, policy, for_, context.by, new_mark)
    if not locks:
        raise NothingFound("no lock ends before that")
    return _done(context, [(present, "extended") for present in locks])


def unlock(
    context: ActContext,
    caller: CallerName | None = None,
    *,
    tenant: OfTenant | None = None,
    address: Address | None = None,
    resource: Resource | None = None,
    everyone: Everyone = False,
    file: File | None = None,
    policy: OfPolicy | None = None,
    hold_off: Annotated[
        int,
        Param(
            Length(BY_HAND_MAX_DAYS, "none"),
            "Not set again before: 2h, 1d; none: at once. Default: the end of the lock.",
            "1d",
        ),
    ]
    | None = None,
) -> Done:
    """Clear locks now, and do not set them again for a time.

    Requests are counted as before. The lock is not set again until it would have ended, or for as long as
    the hold-off says, through later requests and restarts; then the caller is judged again. More than ten
    have to be confirmed. Exit code 1 without such a lock.
    """
    series = _series(context, caller, tenant, address, resource, everyone=everyone, file=file)
    cleared = clear_locks(context.engine, series, policy, hold_off, context.by, new_mark)
    if not cleared:
        raise NothingFound("no such lock is in force")
    ends = [time_text(instant(held.held_off_ms)) if held.held_off_ms else "" for held in cleared]
    return _done(
        context,
        [
            (held.lock, f"cleared until {end}" if end else "cleared")
            for held, end in zip(cleared, ends, strict=True)
        ],
    )


def foresee_unlock(context: ActContext, **arguments: object) -> Foreseen:
    """Returns which locks `unlock` would clear. Raises as it does."""
    done = unlock(context.only_shown, **arguments)  # type: ignore[arg-type] # those of `unlock`
    names = [f"{fields['scope']} {fields['key']}" for fields in done.fields]
    first = ", ".join(names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return Foreseen(
        [f"this clears {len(names):,} locks: {first}{more}"],
        {"locks": len(names)},
        is_asked=len(names) > UNASKED_MAX,
    )


def suspend(
    context: ActContext,
    *,
    for_: Annotated[
        int,
        Param(
            Length(SUSPENDED_MAX_DAYS),
            f"Time until the locks are enforced again: 30m, 2h, 1d; at most {SUSPENDED_MAX_DAYS}d.",
            "30m",
        ),
    ],
) -> Done:
    """Open every gate for a time: the off switch.

    Gates follow within one poll. Requests are counted and locks are set as before, but no lock is enforced;
    limiters in the applications are not affected. Doing it again replaces the end.
    """
    text = time_text(suspend_locks(context.engine, for_, context.by.who, context.by.why, new_mark))
    return Done([{"suspended_until": text}], [f"every gate is open until {text}"])


def resume(context: ActContext) -> Done:
    """End `suspend`: the gates enforce their locks again.

    Gates follow within one poll. Exit code 1 if the locks are not suspended.
    """
    if not resume_locks(context.engine, context.by.who, context.by.why, new_mark):
        raise NothingFound("the locks are not suspended: the gates enforce them")
    return Done([{"suspended_until": None}], ["the gates enforce their locks again"])


def list_notices(
    context: ActContext, *, since: Since | None = None, caller: CallerName | None = None
) -> Listing:
    """Show the notices, the latest first.

    Lists for each notice its time, the series, the policy, the threshold and what was counted when it was
    reached. A threshold is reached once per series and window; in a rolling window again when the sum was
    below it. JSON has an id, which is the same for the same threshold, series and window also after the
    database was restored from a backup.
    """
    key = None if caller is None else context.counted(caller)
    since_s = context.second("since", since) or 0
    notices = raised_notices(context.engine, since_s * 1000, key)
    first = next(notices, None)
    if first is None:
        if key is not None and (absence := never_counted(context.engine, key)) is not None:
            raise NothingFound(f"no threshold was reached, and {absence}")
        return
    for raised in chain([first], notices):
        fields = notice_fields(raised)
        place = (-millis(raised.at), raised.notice.at.id)
        yield ListRow(place, fields, {"threshold": percent(raised.notice.at.threshold)})


def _series(
    context: ActContext,
    caller: str | None,
    tenant: str | None,
    address: IPv4Network | IPv6Network | None,
    resource: str | None,
    *,
    everyone: bool,
    file: Path | None,
) -> list[LockTarget]:
    """Returns the series that the arguments name. Raises Fault unless they name some, in one way."""
    named = [
        *([("caller", context.counted(caller))] if caller else []),
        *([("tenant", tenant)] if tenant else []),
        *([network_scope(address)] if address else []),
        *([("everyone", "")] if everyone else []),
    ]
    if file is not None and not named and not resource:
        return list(_in_file(context, file))
    if file is None and not named and resource:
        return [LockTarget("resource", resource)]
    if file is None and len(named) == 1:
        return [LockTarget(*named[0], resource or "")]
    raise Fault(
        "",
        "name one of <caller>, <tenant>, <address>, <resource> and <everyone>; <resource> may stand beside "
        "another one, and narrows it",
    )


def _effect(action: str, status: int, rate: str | None) -> Effect:
    """Returns the effect of a lock. Raises Fault if its parts do not fit."""
    if (action == "slow") is not (rate is not None):
        raise Fault("rate", "goes with the action slow, and only with it: slow, 10/s")
    try:
        return Effect(action, status, None if rate is None else rate_from_text(rate))
    except ValueError as error:
        raise Fault("rate", f"{rate}: {error}") from error


def _in_file(context: ActContext, file: Path) -> Iterator[LockTarget]:
    """Yields the series of a file. Raises Fault at the first row that names none."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            columns = set(reader.fieldnames or ())
            if not {"scope", "key"} <= columns <= set(FILE_COLUMNS):
                raise Fault("", f"{file}: its first line must be scope,key or scope,key,resource")
            for row in reader:
                if reader.line_num > FILE_ROWS_MAX:
                    raise Fault("", f"{file}: at most {FILE_ROWS_MAX:,} rows")
                scope, key = _checked(row, f"{file}:{reader.line_num}:")
                key = context.counted(key) if scope == "caller" else key
                yield LockTarget(scope, key, row.get("resource") or "")
    except (OSError, UnicodeError, csv.Error) as error:
        raise Fault("", f"{file}: {error}") from error


def _checked(row: dict[str, str | None], where: str) -> tuple[str, str]:
    scope, key = row["scope"] or "", row["key"] or ""
    if scope not in SCOPES:
        raise Fault("", f"{where} {scope or 'nothing'} is not a scope; write one of {', '.join(SCOPES)}")
    if bool(key) is (scope == "everyone"):
        owner = scope if key else f"a {scope}"
        raise Fault("", f"{where} the key of {owner} is {'not empty' if key else 'empty'}")
    if scope in ("address", "range"):
        try:
            return network_scope(AddressRange().read(key))
        except ValueError as error:
            raise Fault("", f"{where} {error}") from error
    if scope == "caller" and not has_kind(key):
        raise Fault("", f"{where} {key}: write the kind of name in front, as in api_key:{key}")
    return scope, key


def _done(context: ActContext, changed: Sequence[tuple[Lock, str]]) -> Done:
    """Returns the locks that an act has changed, or would change."""
    is_shown_only = context.by.is_shown_only
    sentences = [
        f"{done}: {LockTarget(held.scope, held.key, held.resource).text}, {describe_action(held)} "
        f"by {held.policy} until {time_text(held.until)}"
        for held, done in changed
    ]
    fields = [changed_fields(held, done, is_changed=not is_shown_only) for held, done in changed]
    return Done(fields, sentences, "locks")


def notice_fields(raised: RaisedNotice) -> dict[str, object]:
    """Returns a notice as an object."""
    notice = raised.notice
    begin, end = (
        None if second == LASTS_S else time_text(datetime.fromtimestamp(second, UTC))
        for second in (notice.at.window_s, notice.until_s)
    )
    return {
        "id": notice.at.id,
        "at": time_text(raised.at),
        "scope": notice.scope,
        "key": notice.at.key,
        "resource": notice.at.resource,
        "policy": notice.at.policy,
        "threshold": notice.at.threshold / 1_000,
        "used": notice.used,
        "limit": notice.limit,
        "from": begin,
        "until": end,
        "detail": notice.detail,
    }
