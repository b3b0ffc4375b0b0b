"""Acts on callers: facts about them, other limits, exemptions, and forgetting one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from analyzer.acting.act import ActContext, Done, Listing, ListRow, NothingFound
from analyzer.acting.foreseen import Foreseen
from analyzer.acting.parameters import (
    AddressRange,
    All,
    CallerName,
    Fault,
    Length,
    OfText,
    Param,
    SeriesFile,
    Time,
)
from analyzer.callers.caller_answers import COLUMNS, facts_in_words, override_fields
from analyzer.callers.caller_changes import (
    OverrideRequest,
    StoredOverride,
    add_override,
    caller_profile,
    end_override,
    granted_text,
    in_words,
    known_callers,
    set_callers,
    stored_overrides,
)
from analyzer.callers.caller_file import checked_profile, read_file
from analyzer.callers.changed_limits import CALLERS_MAX
from analyzer.callers.forgetting.forget_caller import foresee_forgetting, forget_caller
from analyzer.callers.forgetting.replaced_texts import NamedText
from analyzer.config.amounts import parsed_amount
from analyzer.judging.caller_limits import Profile, Subject, subject_named
from analyzer.judging.judge import Judged
from analyzer.judging.judged_changes import JudgedChanges
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.clock import database_now, millis
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.logs import printable
from analyzer.kernel.sentences import plural
from analyzer.plan.meter_units import Unit
from analyzer.plan.policies import OverrideKind, Policy, base_name

PAUSE_MAX_S = 1.0  # between two transactions of a file, on SQLite
TEXTS_SHOWN = 20
DAYS_MAX = 100 * 366  # more is probably a typing error
OVERRIDES: tuple[OverrideKind, ...] = ("limit", "grant", "exempt")

Tenant = Annotated[str, Param(OfText(metavar="NAME"), "Each caller of a tenant.", "acme")]
Begin = Annotated[
    str, Param(Time(), "Begin: 2026-12-01 (UTC), 2026-12-01T14:00Z. Default: now.", "2026-12-01")
]
End = Annotated[str, Param(Time(), "End: 2026-12-01 (UTC), 2026-12-01T14:00Z. Default: none.", "2026-12-01")]
OverrideFor = Annotated[int, Param(Length(DAYS_MAX), "Instead of an end: 12h or 30d from now.", "30d")]


def list_callers(
    context: ActContext,
    *,
    plan: Annotated[str, Param(OfText(metavar="NAME"), "Only those with this plan.", "pro")] | None = None,
    tenant: Annotated[str, Param(OfText(metavar="NAME"), "Only those of this tenant.", "acme")] | None = None,
) -> Listing:
    """Show the callers with a plan, a tenant, a zone or an anchor, by name."""
    for caller in known_callers(context.engine, plan, tenant):
        yield ListRow((caller.caller,), dict(zip(COLUMNS, (caller.caller, *caller.profile), strict=True)))


def set_facts(
    context: ActContext,
    caller: CallerName | None = None,
    *,
    plan: Annotated[str, Param(OfText(metavar="NAME"), "The plan; - for none.", "pro")] | None = None,
    tenant: Annotated[str, Param(OfText(metavar="NAME"), "The tenant; - for none.", "acme")] | None = None,
    zone: Annotated[
        str, Param(OfText(metavar="ZONE"), "The time zone, Europe/Berlin; - for none.", "Europe/Berlin")
    ]
    | None = None,
    anchor: Annotated[
        str, Param(OfText(metavar="DATE"), "The day on which its periods begin; - for none.", "2026-01-31")
    ]
    | None = None,
    file: Annotated[
        Path,
        Param(
            SeriesFile(),
            "Many callers: a line with caller and one or more of plan, tenant, zone, anchor, then theirs.",
            "customers.csv",
        ),
    ]
    | None = None,
) -> Done:
    """Set the plan, tenant, time zone or anchor of a caller, or of many from a file.

    A tenant is written tenant:acme: its plan is also that of its callers without one. Limits and windows
    hold at once: who is above a limit is locked, who is below it is freed. What is not given stays as it is.
    A file is checked before anything is changed; then 1,000 callers at a time are stored and judged.
    """
    texts = {"plan": plan, "tenant": tenant, "zone": zone, "anchor": anchor}
    facts = {name: "" if text == "-" else text for name, text in texts.items() if text is not None}
    if file is not None and caller is None and not facts:
        return _set_from_file(context, file)
    if file is not None or caller is None or not facts:
        raise Fault("", "give <caller> and <plan>, <tenant>, <zone> or <anchor>; or <file> alone")
    key = context.counted(caller)
    try:
        profile = checked_profile(key, Profile(**facts))
    except ValueError as error:
        raise Fault("", f"{key}: {error}") from error
    by = context.by
    judged = set_callers(context.engine, {key: profile}, by.who, by.why, new_mark, [*facts])
    changes = JudgedChanges(judged)
    stored, _ = caller_profile(context.engine, key)
    sentence = f"{key}: {facts_in_words(stored)}; {changes.sentence}"
    return Done([{"caller": key, **stored._asdict(), **changes.fields}], [sentence])


def _set_from_file(context: ActContext, file: Path) -> Done:
    names, written = read_file(file)
    profiles = {context.counted(name): profile for name, profile in written.items()}
    callers, changes, by = sorted(profiles), JudgedChanges(), context.by
    for first in range(0, len(callers), CALLERS_MAX):
        began_s = time.monotonic()
        chunk = {name: profiles[name] for name in callers[first : first + CALLERS_MAX]}
        try:
            changes.add(set_callers(context.engine, chunk, by.who, by.why, new_mark, names))
        except StoreAway as error:
            so_far = f"{first:,} of {len(callers):,} callers are set; do it again to set the rest"
            raise StoreAway(f"{error}; {so_far}") from error
        if dialect_of(context.engine).has_one_writer and callers[first + CALLERS_MAX :]:
            # Flushes wait for the file as well, and SQLite has no queue.
            time.sleep(min(PAUSE_MAX_S, time.monotonic() - began_s))
    sentence = f"{plural(len(callers), 'caller')} set; {changes.sentence}"
    return Done([{"callers": len(callers), **changes.fields}], [sentence])


def limit(
    context: ActContext,
    caller: CallerName | None = None,
    *,
    amount: Annotated[
        str,
        Param(
            OfText(metavar="AMOUNT"),
            'The limit, in the unit of the meter: 5_000, "2 GiB"; unlimited, or 0 for nothing; with a plus '
            "sign, what it may have beyond its limit: +5_000.",
            "9_000",
        ),
    ],
    tenant: Tenant | None = None,
    policy: Annotated[
        str,
        Param(OfText(metavar="NAME"), "The policy; may be left out where there is only one.", "daily"),
    ]
    | None = None,
    from_: Begin | None = None,
    until: End | None = None,
    for_: OverrideFor | None = None,
) -> Done:
    """Give a caller or a tenant another limit, or an amount beyond its limit.

    Where a policy is about callers, what is for a tenant is for each of its callers. It holds at once, up and
    down: who is above it is locked, who is below it is freed. The limit of a caller comes before that of its
    tenant. Amounts beyond a limit add up.
    """
    kind: OverrideKind = "grant" if amount.startswith("+") else "limit"
    subject = _subject(context, caller, tenant, None, kind)
    judged = _policy(context, policy)
    try:
        number = parsed_amount(judged, amount.removeprefix("+"))
    except ValueError as error:
        raise Fault("amount", str(error)) from error
    begin_ms, end_ms = _period(context, from_, until, for_)
    return _added(context, OverrideRequest(kind, subject, judged.name, number, begin_ms, end_ms))


def allow(
    context: ActContext,
    caller: CallerName | None = None,
    *,
    tenant: Tenant | None = None,
    address: Annotated[
        IPv4Network | IPv6Network, Param(AddressRange(), "An address or a range: 10.0.0.0/8.", "10.0.0.0/8")
    ]
    | None = None,
    from_: Begin | None = None,
    until: End | None = None,
    for_: OverrideFor | None = None,
) -> Done:
    """Exempt callers, a tenant, addresses or a range from all locks.

    Their requests are counted as before, also in the totals of a tenant, a resource or everyone, and these
    may be locked.
    """
    subject = _subject(context, caller, tenant, address, "exempt")
    begin_ms, end_ms = _period(context, from_, until, for_)
    return _added(context, OverrideRequest("exempt", subject, from_ms=begin_ms, until_ms=end_ms))


def list_overrides(context: ActContext, *, all_: All = False) -> Listing:
    """Show the limits, additional amounts and exemptions that have not ended, the latest begin first."""
    units = _units(context)
    for override in stored_overrides(context.engine, OVERRIDES, ended=all_):
        unit = units.get(override.policy)
        amount = granted_text(override, unit)
        change = {"limit": amount, "grant": f"+{amount}", "exempt": "exempt"}[override.kind]
        yield ListRow((-override.from_ms, override.id), override_fields(override), {"change": change})


def end(
    context: ActContext,
    id_: Annotated[
        str, Param(OfText(metavar="ID"), "As `gatelock callers list --overrides` shows it.", "5f0c9a2e")
    ],
) -> Done:
    """End a limit, an additional amount or an exemption now.

    Who is above the limit that holds from now on is locked. Exit code 1 if there is none with this id.
    """
    by = context.by
    ended = end_override(context.engine, id_, OVERRIDES, by.who, by.why, new_mark)
    if ended is None:
        raise NothingFound(f"none with the id {id_} is in force or planned: the list shows the ids")
    stored, judged = ended
    return _changed(context, f"ended: {in_words(stored, _unit(context, stored))}", stored, judged, "ended")


def forget(context: ActContext, caller: CallerName) -> Done:
    """Replace a caller's name by a pseudonym, everywhere and for good.

    Its counts, closed days and sums stay. Its locks, overrides and facts are deleted; requests that are
    counted later, replays too, are counted under the pseudonym. Reasons of operators get it, too; --dry-run
    lists those with the name. It has to be confirmed: the name cannot be brought back.
    """
    if context.by.is_shown_only:
        foreseen = foresee_forget(context, caller)
        return Done([{**foreseen.fields, "changed": False}], foreseen.sentences)
    key = context.counted(caller)
    result = forget_caller(context.engine, key, context.by.who, context.by.why, new_mark, _clear(caller, key))
    sentences = [f"the caller is {result.pseudonym} from now on; {plural(result.rows, 'row')} had its name"]
    if result.kept:
        shown = _shown_texts(result.kept)
        sentences.append(f"its name without the kind is {result.meaning}, too, and stays in {shown}")
    return Done([{"pseudonym": result.pseudonym, "rows": result.rows, "is_new": result.is_new}], sentences)


def foresee_forget(context: ActContext, caller: str) -> Foreseen:
    """Returns what `forget` would do."""
    key = context.counted(caller)
    effect = foresee_forgetting(context.engine, key, _clear(caller, key))
    sentences = [
        f"forgetting {key} puts a pseudonym in its place for good: {effect.requests:,} requests stay "
        f"counted, {plural(effect.locks, 'lock')} and {plural(effect.overrides, 'override')} end"
    ]
    if effect.texts:
        but = f", but not without its kind, which is {effect.meaning}, too" if effect.meaning else ""
        sentences.append(f"it is replaced in {_shown_texts(effect.texts)}{but}")
    fields = effect._asdict() | {"texts": [text._asdict() for text in effect.texts]}
    return Foreseen(sentences, fields)


def _clear(caller: str, key: str) -> str:
    """Returns the name of a caller as an operator wrote it, with the kind that it is counted by."""
    kind, colon, _ = key.partition(":")
    return kind + colon + caller.removeprefix(kind + colon)


def _shown_texts(texts: Sequence[NamedText]) -> str:
    shown = ", ".join(f"{text.column} ({printable(text.text)})" for text in texts[:TEXTS_SHOWN])
    more = f" and {len(texts) - TEXTS_SHOWN:,} more" if len(texts) > TEXTS_SHOWN else ""
    return f"{plural(len(texts), 'text')}: {shown}{more}"


def _subject(
    context: ActContext,
    caller: str | None,
    tenant: str | None,
    address: IPv4Network | IPv6Network | None,
    kind: OverrideKind,
) -> Subject:
    """Returns whom an override is for. Raises Fault unless exactly one is named."""
    if [caller, tenant, address].count(None) != 2:
        names = "<caller>, <tenant> and <address>" if kind == "exempt" else "<caller> and <tenant>"
        raise Fault("", f"name one of {names}")
    if caller is not None:
        return subject_named(context.counted(caller))
    if tenant is not None:
        return Subject("tenant", tenant)
    return Subject("address", str(address))


def policies_by_name(context: ActContext) -> dict[str, Policy]:
    """Returns the policies in force without candidates, by name. Raises StoreAway, SchemaBehind."""
    plan = plan_in_force(context.engine)
    policies = () if plan is None else plan.policies
    return {policy.name: policy for policy in policies if policy.name == base_name(policy.name)}


def _policy(context: ActContext, name: str | None) -> Policy:
    """Returns the policy of the plan in force; without a name, the only one. Raises Fault."""
    policies = policies_by_name(context)
    context.require_name("policy", name, policies)
    if name is None and len(policies) != 1:
        if not policies:
            raise Fault("", "no policy is in force: there is no limit to change")
        raise Fault("policy", f"is missing: write one of {', '.join(policies)}")
    policy = policies[name] if name is not None else next(iter(policies.values()))
    if policy_kind(policy).whole_sum is not None:
        share = f"{policy.name} is a share, without limits of single callers"
        raise Fault("policy", f"{share}: see `gatelock callers allow --help`")
    return policy


def _period(
    context: ActContext, begin: str | None, end: str | None, length_ms: int | None
) -> tuple[int | None, int | None]:
    """Returns begin and end in milliseconds, None for now and for none. Raises Fault."""
    if end is not None and length_ms is not None:
        raise Fault("", "give <until> or <for>, not both")
    now_ms = millis(database_now(context.engine))
    begin_s, end_s = context.second("from", begin), context.second("until", end)
    begin_ms = None if begin_s is None else begin_s * 1000
    end_ms = None if end_s is None else end_s * 1000
    if end_ms is not None and end_ms <= now_ms:
        raise Fault("until", f"{end} is over: write a time of the future, or <for> 30d")
    if length_ms is not None:
        end_ms = now_ms + length_ms
    if begin_ms is not None and end_ms is not None and end_ms <= begin_ms:
        name = "until" if end is not None else "for"
        text = end if end is not None else "counted from now"
        raise Fault(name, f"{text} is not later than <from> {begin}: write a later end")
    return begin_ms, end_ms


def _units(context: ActContext) -> dict[str, Unit | None]:
    """Returns the units of the limits of policies, by name."""
    plan = plan_in_force(context.engine)
    return {} if plan is None else {policy.name: policy.meter_unit for policy in plan.policies}


def _unit(context: ActContext, override: StoredOverride) -> Unit | None:
    return _units(context).get(override.policy)


def _added(context: ActContext, request: OverrideRequest) -> Done:
    stored, judged = add_override(context.engine, request, context.by.who, context.by.why, new_mark)
    sentence = f"{stored.id}: {in_words(stored, _unit(context, stored))}, {stored.state}"
    return _changed(context, sentence, stored, judged, stored.state)


def _changed(context: ActContext, sentence: str, stored: StoredOverride, judged: Judged, state: str) -> Done:
    changes = JudgedChanges(judged)
    fields = override_fields(stored) | {"state": state} | changes.fields
    return Done([fields], [f"{sentence}; {changes.sentence}"])
