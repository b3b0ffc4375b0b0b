"""The analyzers of a database by name, and the agreement on the plan that each of them counts by.

`plan/proposals.py` decides; this module reads and stores what it compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.measured_delays import MeasuredDelays, measured_from
from analyzer.judging.judge import NOTHING, Judged
from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql import plans
from analyzer.kernel.database.engine import NowMs, insert, reading, writing
from analyzer.kernel.errors import SourceDiffers
from analyzer.kernel.model import parent_analyzer
from analyzer.kernel.tables.schema import analyzers, offsets
from analyzer.plan.plan import FORMAT, RULES, SOURCE, Plan
from analyzer.plan.plan_differences import differences, in_words, stopped_text, unenforced
from analyzer.plan.proposals import Agreement, LastStart, Proposal, applied, merged, promoted, propose

LIVING_MS = 15_000  # an analyzer sends a heartbeat every few seconds
ALONE_MS = 60_000  # after which an unknown name may change the plan
REFUSED_CHARS_MAX = 500
PROBLEMS_MAX = 20  # of an analyzer


class AnalyzerFile(NamedTuple):
    """The configuration of an analyzer, as far as others may have to know it.

    Attributes:
        name: The configured name of the analyzer.
        plan: What its file says.
        release: Version of the program.
        group_id: Its consumer group.
        topics: The topics that it reads.
        is_applied: Whether its whole file is put in force, also parts that were declined (`run --apply`).
    """

    name: str
    plan: Plan
    release: str = ""
    group_id: str = ""
    topics: Sequence[str] = ()
    is_applied: bool = False


class Reads(NamedTuple):
    """The consumer group and the topics of an analyzer."""

    group_id: str = ""
    topics: Sequence[str] = ()


class KnownAnalyzer(NamedTuple):
    """A row of the table."""

    name: str
    format: int
    release: str
    file: Mapping[str, str]  # digests of the parts of the file that it last started with
    settled: Mapping[str, str]
    reads: Reads
    age_ms: int  # since its last heartbeat, or one of a partition that it follows
    measured: MeasuredDelays | None = None  # of the minutes before its last heartbeat
    refused: str = ""  # why its changed configuration is refused; "": it is not
    problems: Mapping[str, str] = {}  # that only it can see: a sentence by name


class SettledHere(NamedTuple):
    """The parts of its file that a process has settled itself, and the plan that was in force then.

    The table has one row for a name. Of two processes with one name and different files each would take the
    other's file there for an edit, and they would put their files in force in turn.
    """

    version: int
    mark: str
    parts: Mapping[str, str]  # digests
    proposed: str = ""  # digest of a plan; if it came in force since then, `parts_proposed` are settled, too
    parts_proposed: Mapping[str, str] = {}


class SqlAgreement:
    """Agrees with the other analyzers of a database on the plan that this one counts by."""

    def __init__(
        self, engine: sa.Engine, owner: str, file: AnalyzerFile, random_mark: Callable[[], str]
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._file = file
        self._random_mark = random_mark
        self._is_registered = False
        self._settled_here: SettledHere | None = None

    def agree(self) -> Agreement:
        """Returns what to count by when the analyzer starts, another plan came in force, or it was waiting.

        The first plan of a database comes in force at once. Raises StoreAway, SchemaBehind.
        """
        file = self._file
        with writing(self._engine) as db:
            version, in_force = _active_or_first(db, file.plan, self._owner, self._random_mark)
            last_start = self._before(db, in_force)
            proposal, notes = self._proposal(db, in_force, last_start)
            self._store(db, proposal.settled(file.plan, last_start))
            self._settled_here = self._settled_by(db, version, proposal)
        self._is_registered = True
        agreement = Agreement(version, in_force, proposal.plan, file.name, file.plan.parts, tuple(notes))
        return agreement._replace(is_waiting=bool(proposal.taken) and not agreement.is_proposal)

    def propose(self, plan: Plan) -> bool:
        """Has the next `agree` propose `plan`, which the file says now; returns whether that differs."""
        is_another = plan.parts != self._file.plan.parts
        self._file = self._file._replace(plan=plan)
        return is_another

    def beat(
        self,
        measured: MeasuredDelays | None = None,
        refused: str = "",
        problems: Mapping[str, str] | None = None,
    ) -> None:
        """Stores that this analyzer lives, what it has measured lately, and what troubles it.

        Args:
            measured: Delays and clocks.
            refused: Why it refuses a changed file; "": it does not.
            problems: Those that only it can see: a sentence by name.

        Raises StoreAway.
        """
        text = "" if measured is None else measured.to_json()
        shown = dict(islice((problems or {}).items(), PROBLEMS_MAX))
        with writing(self._engine) as db:
            statement = sa.update(analyzers).where(analyzers.c.name == self._file.name)
            db.execute(
                statement.values(
                    beat_ms=NowMs(), measured=text, refused=refused[:REFUSED_CHARS_MAX], problems=_text(shown)
                )
            )

    def _before(self, db: sa.Connection, in_force: Plan) -> LastStart | None:
        """Returns what is stored about the last start; None for an unknown name."""
        if self._file.is_applied and not self._is_registered:
            return LastStart({})
        row = db.execute(sa.select(analyzers.c.settled).where(analyzers.c.name == self._file.name)).first()
        if row is not None:
            settled = {**_digests(row.settled), **self._known_here(db)}
            rules = settled.get(RULES, "")
            is_another = rules not in (in_force.parts.get(RULES, ""), self._file.plan.parts.get(RULES, ""))
            return LastStart(settled, plans.enforced_by_rules(db, rules) if is_another else frozenset())
        # A row that is gone since this process started: the database was restored to a time before it.
        return LastStart({}) if self._is_registered else None

    def _known_here(self, db: sa.Connection) -> Mapping[str, str]:
        """Returns what this process has settled since it started; nothing if that was restored away."""
        settled = self._settled_here
        if settled is None or not plans.has_been(db, settled.version, settled.mark):
            return {}
        came = bool(settled.proposed) and plans.came_in_force(db, settled.proposed, settled.version)
        return {**settled.parts, **(settled.parts_proposed if came else {})}

    def _settled_by(self, db: sa.Connection, version: int, proposal: Proposal) -> SettledHere:
        parts = self._file.plan.parts
        proposed = {part: parts[part] for part in proposal.taken}
        return SettledHere(
            version,
            plans.stored_mark(db, version),
            {part: digest for part, digest in parts.items() if part not in proposed},
            proposal.plan.digest if proposed else "",
            proposed,
        )

    def _proposal(
        self, db: sa.Connection, in_force: Plan, last_start: LastStart | None
    ) -> tuple[Proposal, list[str]]:
        file = self._file
        peers = [peer for peer in known_analyzers(db) if peer.name != file.name]
        # After a restore, living analyzers may follow partitions and have no row.
        ages_ms = [age_ms for name, age_ms in _owner_ages_ms(db).items() if name != file.name]
        is_alone = all(age_ms > ALONE_MS for age_ms in (*ages_ms, *(peer.age_ms for peer in peers)))
        proposal = propose(in_force, file.plan, last_start, is_alone=is_alone)
        notes = []
        if proposal.kept:
            stopped = _stopped(db, in_force, merged(in_force, file.plan, [RULES]))
            notes.append(
                f"this configuration is not in force: {stopped}, and a command or another file enforces "
                f"{', '.join(proposal.kept)}. `gatelock doctor` names the lines to change in this file; to "
                "stop enforcing: gatelock policies apply"
            )
        elif proposal.declined:
            lines = in_words(differences(in_force, merged(in_force, file.plan, proposal.declined)))
            notes.append(
                f"this configuration is not in force ({', '.join(proposal.declined)}: {lines}); counting by "
                "the plan in force. To put this file in force: gatelock policies apply"
            )
        if proposal.taken and not file.is_applied:
            behind = _behind(db, file.name)
            if behind:
                notes.append(
                    f"waiting with {', '.join(proposal.taken)}: {', '.join(behind)} run an earlier "
                    "version that cannot read the new plan; upgrade them first, or start with --apply"
                )
                return Proposal(in_force, proposal.taken, proposal.declined), notes
        if proposal.taken:
            lines = in_words(differences(in_force, proposal.plan))
            if stopped := _stopped(db, in_force, proposal.plan):
                lines += f"; {stopped}"
            notes.append(f"with the first records counted, this configuration comes in force: {lines}")
        return proposal, notes

    def _store(self, db: sa.Connection, settled: Mapping[str, str]) -> None:
        file = self._file
        row = {
            "name": file.name,
            "format": FORMAT,
            "release": file.release,
            "file": _text(file.plan.parts),
            "settled": _text(settled),
            "reads": json.dumps([file.group_id, list(file.topics)]),
            "started_ms": NowMs(),
            "beat_ms": NowMs(),
        }
        begun = insert(db, analyzers).values(row)
        changed = {name: value for name, value in row.items() if name not in ("name", "started_ms")}
        if not self._is_registered:
            changed["started_ms"] = NowMs()
        db.execute(begun.on_conflict_do_update(index_elements=analyzers.primary_key, set_=changed))


def _stopped(db: sa.Connection, earlier: Plan, later: Plan) -> str:
    """Returns what `later` stops enforcing, with the number of locks; "" if it is nothing."""
    policies = unenforced(earlier, later)
    return stopped_text(policies, lock_feed.enforced_by(db, policies)) if policies else ""


def agree_on_source(engine: sa.Engine, owner: str, file: Plan, source: str) -> Agreement:
    """Returns by what an import counts: the plan in force, with the source if the plan lacks it.

    The first plan of a database comes in force at once, with all that the file says. Raises SourceDiffers,
    StoreAway, SchemaBehind.
    """
    with writing(engine) as db:
        version, in_force = _active_or_first(db, file, owner, new_mark)
    if source not in in_force.sources:
        added = {source: file.sources[source]}
        return Agreement(version, in_force, in_force.with_sources(dict(in_force.sources) | added))
    if source in differing_sources(in_force, file):
        lines = in_words(differences(in_force, merged(in_force, file, [SOURCE + source])))
        raise SourceDiffers(
            f"the plan in force reads this source in another way ({lines}); give the source another name, "
            "or put this configuration in force: gatelock policies apply"
        )
    return Agreement.of(version, in_force)


class AppliedPlan(NamedTuple):
    """The outcome of a change of the plan by an operator."""

    version: int  # of the plan in force
    differences: Sequence[str]  # lines; none: nothing was to be changed
    behind: Sequence[str]  # living analyzers that cannot read the plan
    judged: Judged = NOTHING  # at once; the warden does what is left
    stopped: str = ""  # what is not enforced any more, with the number of locks; "": nothing


def apply_file(
    engine: sa.Engine,
    file: Plan,
    who: str,
    reason: str = "",
    *,
    is_pruned: bool = False,
    is_shown_only: bool = False,
    random_mark: Callable[[], str] = new_mark,
) -> AppliedPlan:
    """Puts every part of `file` in force at once, for an operator; with `is_pruned`, nothing else.

    With `is_shown_only`, returns the difference and changes nothing. Raises StoreAway, SchemaBehind.
    """

    def of_file(in_force: Plan) -> Plan:
        return applied(in_force, file, prune=is_pruned)

    return change_plan(engine, of_file, who, reason, is_shown_only=is_shown_only, random_mark=random_mark)


def change_plan(
    engine: sa.Engine,
    change: Callable[[Plan], Plan],
    who: str,
    reason: str = "",
    *,
    is_shown_only: bool = False,
    is_tried: bool = False,
    random_mark: Callable[[], str] = new_mark,
) -> AppliedPlan:
    """Puts what `change` makes of the plan in force in its place at once, for an operator.

    With `is_shown_only`, returns the difference and changes nothing; with `is_tried` the locks that it would
    set and clear, too, which costs as much as the change. Raises StoreAway, SchemaBehind, and what `change`
    raises.
    """
    with writing(engine) as db:
        if not is_shown_only:
            plans.block_flushes(db)  # a plan that came in force after this one was read would be undone
        version, in_force = plans.active(db) if plans.exists(db) else (0, Plan())
        plan = change(in_force)
        lines = differences(in_force, plan)
        stopped = _stopped(db, in_force, plan)
        if is_shown_only or not lines:
            return AppliedPlan(version, lines, _behind(db), stopped=stopped)
        trial = db.begin_nested() if is_tried else None
        activated = plans.activate(db, plan, random_mark, who, reason=reason)
        behind = _behind(db)
        if trial is not None:
            trial.rollback()
            return AppliedPlan(version, lines, behind, activated.judged, stopped)
    return AppliedPlan(activated.version, lines, behind, activated.judged, stopped)


PROMOTED = "gatelock policies enforce "  # with the policy: the beginning of the reason in the audit log


def promote_policy(
    engine: sa.Engine, name: str, who: str, reason: str, *, is_shown_only: bool = False
) -> AppliedPlan:
    """Enforces a policy that is in shadow, or its candidate, for an operator.

    The audit log names the command, so that a configuration that says something else can be explained. With
    `is_shown_only` all series are judged as well, and nothing of it stays.
    """
    full_reason = f"{PROMOTED}{name}: {reason}" if reason else f"{PROMOTED}{name}"
    return change_plan(
        engine,
        lambda in_force: promoted(in_force, name) or in_force,
        who,
        full_reason,
        is_tried=is_shown_only,
    )


def _behind(db: sa.Connection, but: str = "") -> list[str]:
    """Returns the living analyzers that cannot read a plan of this version."""
    return [
        peer.name
        for peer in known_analyzers(db)
        if peer.name != but and peer.format < FORMAT and peer.age_ms <= LIVING_MS
    ]


def differing_sources(in_force: Plan, file: Plan) -> frozenset[str]:
    """Returns the sources that the plan has with another mapping than the file."""
    return frozenset(
        name
        for name in file.sources.keys() & in_force.sources.keys()
        if in_force.parts[SOURCE + name] != file.parts[SOURCE + name]
    )


def _active_or_first(
    db: sa.Connection, file: Plan, owner: str, random_mark: Callable[[], str]
) -> tuple[int, Plan]:
    """Returns the plan in force; in a new database, that is the one of the file from now on."""
    if not plans.exists(db):
        plans.block_flushes(db)  # waits for another analyzer that does the same at this moment
        if not plans.exists(db):
            plans.activate(db, file, random_mark, owner)
    return plans.active(db)


def settle(db: sa.Connection, agreement: Agreement) -> None:
    """Stores, in the transaction that puts a proposal in force, that the analyzer's file is settled."""
    if agreement.name:
        statement = sa.update(analyzers).where(analyzers.c.name == agreement.name)
        db.execute(statement.values(settled=_text(agreement.file)))


def known_analyzers(db: sa.Connection) -> list[KnownAnalyzer]:
    """Returns every analyzer that ever started on this database, by name."""
    columns, ages_ms = analyzers.c, _owner_ages_ms(db)
    statement = sa.select(
        columns.name, columns.format, columns.release, columns.file, columns.settled, columns.reads,
        NowMs() - columns.beat_ms, columns.measured, columns.refused,
        columns.problems,
    ).order_by(columns.name)  # fmt: skip
    return [
        KnownAnalyzer(
            name, format_, release, _digests(file), _digests(settled),
            Reads(*json.loads(reads)), min(age_ms, ages_ms.get(name, age_ms)), measured_from(measured),
            refused, _digests(problems),
        )
        for (
            name, format_, release, file, settled, reads, age_ms, measured, refused, problems,
        ) in db.execute(statement)
    ]  # fmt: skip


def _owner_ages_ms(db: sa.Connection) -> dict[str, int]:
    """Returns the time since the last heartbeat of a partition that it follows, by the analyzer's name."""
    age_ms = NowMs() - sa.func.max(offsets.c.beat_ms)
    followed = sa.select(offsets.c.owner, age_ms).where(offsets.c.beat_ms.is_not(None))
    ages_ms: dict[str, int] = {}
    for owner, owner_age_ms in db.execute(followed.group_by(offsets.c.owner)):
        name = parent_analyzer(owner)
        ages_ms[name] = min(owner_age_ms, ages_ms.get(name, owner_age_ms))
    return ages_ms


def all_known(engine: sa.Engine) -> list[KnownAnalyzer]:
    """Returns every analyzer that ever started on this database, by name. Raises StoreAway."""
    with reading(engine) as db:
        return known_analyzers(db)


def _text(digests: Mapping[str, str]) -> str:
    return json.dumps(dict(digests), sort_keys=True)


def _digests(text: str) -> dict[str, str]:
    return dict(json.loads(text)) if text else {}
