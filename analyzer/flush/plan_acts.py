"""Acts on policies and on the sources that are read."""

from __future__ import annotations

from typing import Annotated

from analyzer.acting.act import ActContext, Done, Listing, ListRow, Note, NothingFound
from analyzer.acting.parameters import Fault, OfText, Param, PolicyName
from analyzer.counting.gaps import recorded_gaps
from analyzer.delays.partition_delays import measured_by_owner, partition_delays
from analyzer.flush.analyzers import promote_policy
from analyzer.flush.followed_partitions import SILENT_MS, followed
from analyzer.flush.followed_partitions import retire as retire_source
from analyzer.gates.gate_health import living_gates
from analyzer.gates.gate_reports import reporting_gates
from analyzer.gates.unasked_values import newly_unasked
from analyzer.judging.judged_changes import JudgedChanges
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.stored_locks import shadow_locks
from analyzer.judging.policy_answers import listed_policies
from analyzer.judging.sql.braked_policies import brake_states, release_policy
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.sentences import plural
from analyzer.plan.plan import Plan
from analyzer.plan.plan_differences import differences
from analyzer.plan.policies import CANDIDATE, base_name
from analyzer.plan.proposals import applied, promoted


def list_policies(context: ActContext) -> Listing:
    """Show the policies in force, in the order of the plan.

    Lists in what this configuration differs from them. Exit code 1 if it is not the one in force.
    """
    for number, fields in enumerate(listed_policies(context.engine)):
        mode = f"braked: {fields['brake']}" if fields["brake"] else fields["mode"]
        yield ListRow((number,), fields, {"policy": fields["name"], "mode": mode})
    plan = plan_in_force(context.engine)
    if plan is None or not context.settings.sources:
        return
    if lines := differences(plan, applied(plan, context.settings.plan(), prune=False)):
        yield Note("\n  ".join(["this configuration is not in force:", *lines]), is_wrong=True)


def enforce(context: ActContext, policy: PolicyName) -> Done:
    """Enforce a policy that is in shadow, its candidate, or one that its brake holds.

    Gates get the locks that it has in shadow, at once. A policy whose brake holds it is released, and counts
    as older than a day from then on, so that the brake does not hold it again. A policy by a named value is
    refused while a living gate does not take it. Otherwise the change is one
    of the plan, for all analyzers, and the answer says what to write into the configuration file, which stays
    as it is. Exit code 1 if the policy is enforced already and has no candidate.
    """
    plan = _plan_with(context, policy)
    states = brake_states(context.engine)
    held = [
        _release(context, member.name, state.why)
        for member in plan.family(policy)
        if (state := states.get(member.name)) is not None and state.braked_ms is not None
    ]
    if held:
        fields = [changed for done in held for changed in done.fields]
        sentences = [sentence for done in held for sentence in done.sentences]
        return Done(fields, sentences, "" if len(held) == 1 else "policies")
    return _promote(context, plan, policy)


def _promote(context: ActContext, plan: Plan, policy: str) -> Done:
    changed = promoted(plan, policy)
    if changed is None:
        raise NothingFound(f"{policy} is enforced, and has no candidate")
    if unasked := newly_unasked(plan, changed, living_gates(reporting_gates(context.engine))):
        raise Fault("policy", unasked[0].text)
    has_candidate = plan.policy(policy + CANDIDATE) is not None
    names = [policy + CANDIDATE] if has_candidate else [member.name for member in plan.family(policy)]
    waiting = sum(shadow_locks(context.engine, name) for name in names)
    by = context.by
    done = promote_policy(context.engine, policy, by.who, by.why, is_shown_only=by.is_shown_only)
    changes = JudgedChanges(done.judged)
    sentences = [*done.differences, f"in shadow it has {plural(waiting, 'lock')} at this time"]
    if by.is_shown_only:
        sentences.append(changes.sentence)
    else:
        stated = "the settings of its candidate, and no candidate" if has_candidate else "no mode"
        sentences += [
            f"in force as plan {done.version}{changes.addition}",
            f"write it into the configuration, too: [[policies]] {policy} with {stated}",
        ]
    fields = {"policy": policy, "plan": done.version, "differences": [*done.differences], "braked": None}
    counted = {"shadow_locks": waiting, "changed": not by.is_shown_only}
    return Done([fields | counted | changes.fields], sentences)


def _release(context: ActContext, policy: str, braked: str) -> Done:
    waiting = shadow_locks(context.engine, policy)
    state = {"policy": policy, "plan": None, "differences": (), "braked": braked}
    fields = state | {"shadow_locks": waiting}
    if context.by.is_shown_only:
        sentence = f"gates get {plural(waiting, 'lock')} at once"
        return Done([fields | {"changed": False} | JudgedChanges().fields], [braked, sentence])
    done = release_policy(context.engine, policy, context.by.who, context.by.why, new_mark)
    if done is None:
        raise NothingFound(f"the brake does not hold {policy} any more")
    sentence = f"{policy} is enforced again: {plural(done.locks, 'lock')} in shadow are in force now"
    changes = JudgedChanges(done.judged)
    return Done([fields | {"changed": True} | changes.fields], [braked, sentence])


def _plan_with(context: ActContext, policy: str) -> Plan:
    """Returns the plan in force. Raises Fault if it has no such policy."""
    plan = plan_in_force(context.engine) or Plan()
    names = {name for name in plan.policy_names if name == base_name(name)}
    context.require_name("policy", policy, names)
    return plan


def list_partitions(context: ActContext) -> Listing:
    """Show every partition that was ever read.

    Lists for each partition the next offset, the lag at the last heartbeat of its analyzer, the shipping
    delay of its source (99th percentile), what is known of its clock, and the age of the heartbeat. Exit
    code 1 if a partition has no analyzer, or is stopped.
    """
    measured = measured_by_owner(context.engine)
    for part in followed(context.engine):
        name = f"{part.topic}[{part.partition}]"
        delays = partition_delays(part.owner, part.source, name, measured)
        cells = {
            "partition": name,
            "records behind": part.behind_records,
            "seconds behind": f"{part.behind_s:.1f}",
            "shipping": "" if delays.shipping_p99_s is None else f"{delays.shipping_p99_s:g} s",
            "Kafka's clock": clock_text(delays.kafka_ahead_s),
            "heard": "not followed" if part.heard_s is None else f"{part.heard_s:.0f} s ago",
            "analyzer": part.owner,
        }
        is_silent = part.heard_s is not None and part.heard_s * 1000 > SILENT_MS
        place = (part.source, part.topic, part.partition, part.topic_id)
        yield ListRow(place, part._asdict() | delays._asdict(), cells, is_silent)
    if stopped := len({gap.part for gap in recorded_gaps(context.engine)}):
        why = "`gatelock upkeep sources list --gaps` says why, and how to continue"
        yield Note(f"{plural(stopped, 'stopped partition')}: {why}", is_wrong=True)


def clock_text(ahead_s: float | None) -> str:
    """Returns what the times in Kafka prove about their clock; "" if nothing is measured.

    >>> clock_text(4.0), clock_text(-2.71), clock_text(None)
    ('at least 4.0 s ahead', 'at most 2.7 s behind', '')
    """
    if ahead_s is None:
        return ""
    return f"at least {ahead_s:.1f} s ahead" if ahead_s > 0 else f"at most {-ahead_s:.1f} s behind"


def retire(
    context: ActContext,
    source: Annotated[
        str, Param(OfText(metavar="SOURCE"), "As `gatelock upkeep sources list` shows it.", "billing-log")
    ],
) -> Done:
    """Retire a source that no analyzer reads any more.

    Its partitions then no longer count as lag. What was counted is kept; an analyzer that reads the source
    again continues at the stored offset. Exit code 1 if no partition of it is without an analyzer.
    """
    number = retire_source(context.engine, source, context.by.who, context.by.why)
    if not number:
        raise NothingFound(f"{source}: nothing to retire; `gatelock upkeep sources list` shows the sources")
    return Done(
        [{"source": source, "partitions": number}], [f"{source}: {plural(number, 'partition')} retired"]
    )
