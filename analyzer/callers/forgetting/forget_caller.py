"""One caller is forgotten: a pseudonym takes the place of its name in every table; see docs/decisions/0054.

The plan comes first: from then on no flush writes the name. What is stored is renamed behind it, in short
transactions, and the name that closed days refer to is deleted at the end. A crash between leaves names;
forgetting the caller again continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.callers.caller_changes import end_override, stored_overrides
from analyzer.callers.forgetting import renamed_rows, replaced_texts
from analyzer.callers.forgetting.other_meanings import other_meaning
from analyzer.callers.forgetting.renaming import Renaming
from analyzer.callers.forgetting.replaced_texts import NamedText, named_texts
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.judging.locks import lock_feed
from analyzer.judging.sql import plans
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.database.installation_secrets import REFERENCES, stored_secret
from analyzer.kernel.errors import CannotForget
from analyzer.kernel.tables.billing_tables import referenced_names
from analyzer.plan import catalog
from analyzer.plan.meters import DAY_S
from analyzer.plan.policies import OverrideKind
from analyzer.replay import generations
from gatekeeper.identity import NameDigest
from gatekeeper.model import Clear

FORGOTTEN = "callers forget"  # the act in the audit log
KINDS: tuple[OverrideKind, ...] = ("limit", "grant", "exempt")


class ForgottenCaller(NamedTuple):
    """A caller that was forgotten.

    Attributes:
        pseudonym: The name of its counts from now on.
        rows: Rows that had the name.
        is_new: Whether it was not forgotten before.
        kept: Texts that have the name without its kind, and stay as they are.
        meaning: What else this text means; "": nothing, and all texts have changed.
    """

    pseudonym: str
    rows: int
    is_new: bool
    kept: Sequence[NamedText] = ()
    meaning: str = ""


class ForgettingEffect(NamedTuple):
    """Locks and overrides that a caller loses when it is forgotten; its requests stay counted.

    Attributes:
        requests: That stay counted.
        locks: That end.
        overrides: That end.
        texts: Free texts with the name, which is replaced.
        meaning: What else the name without its kind means, so that texts with it alone stay; "": nothing.
    """

    requests: int
    locks: int
    overrides: int
    texts: Sequence[NamedText]
    meaning: str


def foresee_forgetting(engine: sa.Engine, name: str, clear: str = "") -> ForgettingEffect:
    """Returns what forgetting a caller ends, `clear` as for `forget_caller`.

    Changes nothing. Raises StoreAway.
    """
    query = UsageQuery("caller", DAY_S, key=name, meter="requests")
    requests = sum(row.value + row.denied for row in usage_rows(engine, query))
    stored = [
        override
        for override in stored_overrides(engine, KINDS, subject=name)
        if override.subject.kind == "caller"
    ]
    with reading(engine) as db:
        scopes = catalog.load(db).lock_scopes("caller")
        locks = sum(lock_feed.count_locks(db, scope, name) for scope in scopes)
    caller = Renaming(name, "", "", clear)
    return ForgettingEffect(
        requests, locks, len(stored), named_texts(engine, caller), other_meaning(engine, caller)
    )


def forget_caller(
    engine: sa.Engine, name: str, who: str, reason: str, random_mark: Callable[[], str], clear: str = ""
) -> ForgottenCaller:
    """Replaces the name of a caller by a pseudonym in every table; requests to come are counted under it.

    `clear` is the name as people write it, where `name` has a digest in its place. Idempotent: another call
    continues what a crash has left. Raises CannotForget, StoreAway, SchemaBehind.
    """
    caller, is_new = _put_in_force(engine, Renaming(name, "", "", clear), who, reason, random_mark)
    _free(engine, caller, who, random_mark)
    # Generations that are not swapped in have the name, and another plan than the one in force by now.
    generations.drop_open(engine, who, "a caller was forgotten")
    generations.delete_rows(engine)
    meaning = other_meaning(engine, caller)
    rows = renamed_rows.rename(engine, caller)
    rows += replaced_texts.replace(engine, caller, also_plain=not meaning)
    with writing(engine) as db:
        of_name = sa.delete(referenced_names).where(referenced_names.c.reference == caller.reference)
        rows += db.execute(of_name).rowcount
        lock_feed.forget_changes(db)
    return ForgottenCaller(caller.pseudonym, rows, is_new, named_texts(engine, caller), meaning)


def _put_in_force(
    engine: sa.Engine, caller: Renaming, who: str, reason: str, random_mark: Callable[[], str]
) -> tuple[Renaming, bool]:
    """Puts the plan in force by which the caller is counted under its pseudonym; returns the pseudonym."""
    name = caller.name
    with writing(engine) as db:
        plans.block_flushes(db)
        if not plans.exists(db):
            raise CannotForget("nothing has been counted yet: no plan is in force")
        in_force = plans.active(db)[1]
        if any(
            (override.subject_kind, override.subject) == ("caller", name) for override in in_force.overrides
        ):
            raise CannotForget(
                f"{name} stands in the configuration: remove its overrides there, and run "
                "`gatelock policies apply`"
            )
        reference = NameDigest(stored_secret(db, REFERENCES)).of(name)
        caller = caller._replace(pseudonym=make_pseudonym(reference), reference=reference)
        if reference in in_force.forgotten:
            return caller, False
        record(db, who, FORGOTTEN, caller.pseudonym, caller.replaced_plain(reason))
        plan = in_force.with_forgotten([reference])
        plans.activate(db, plan, random_mark, who, reason=FORGOTTEN)
        return caller, True


def _free(engine: sa.Engine, caller: Renaming, who: str, random_mark: Callable[[], str]) -> None:
    """Ends the overrides of the caller, and clears its locks."""
    for override in list(stored_overrides(engine, KINDS, subject=caller.name)):
        if override.subject.kind == "caller":
            end_override(engine, override.id, KINDS, who, FORGOTTEN, random_mark)
    with writing(engine) as db:
        plans.block_flushes(db)
        scopes = catalog.load(db).lock_scopes("caller")
        locks = [key for scope in scopes for key in lock_feed.of_series(db, scope, [caller.name])]
        if locks:
            lock_feed.publish(db, [Clear(key) for key in sorted(locks)], random_mark())
