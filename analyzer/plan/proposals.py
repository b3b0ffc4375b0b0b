"""Files propose, the plan decides: which parts of a configuration come in force, and which do not.

A source is counted by the rules and the mapping that the plan in force has, never by what the configuration
of an analyzer says. Part by part, a configuration is compared with the plan when its analyzer starts, and
whenever another plan comes in force:

    equal                              nothing to do
    a source that the plan lacks       is added
    changed since the last start       an operator edited this file: it is put in force
      under this analyzer's name
    as at the last start, and          the file is an old one: it is declined, and the analyzer counts by the
      replaced since                   plan; so is one that this process has put in force since it started
    would stop enforcing a policy      declined: a command or another file enforces it, and this one was not
      that it never enforced itself      edited to the contrary; `gatelock policies apply` asks and does it
    an analyzer of an unknown name     a colleague's file must not open every gate: declined, unless no other
                                       analyzer has lived for a minute
    missing in the configuration       stays in the plan: machines read different files

So a crash before a proposal came in force changes nothing, a file that is put back to what it was is an
edit, and after a restore the files are compared with what the dump remembers of them. `gatelock policies
apply` and `gatelock run --apply` put a whole file in force, and with `--prune` nothing else.

Pure: `analyzer.flush.analyzers` reads and stores what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from analyzer.plan.plan import RULES, SOURCE, Plan, make_plan
from analyzer.plan.plan_differences import unenforced
from analyzer.plan.policies import CANDIDATE, IN_FORCE, base_name

KEPT_BY_PROMOTION = ("name", "mode", "notify", "brake")  # of a policy that gets the settings of its candidate


class LastStart(NamedTuple):
    """The stored state of an analyzer of this name.

    Attributes:
        settled: Digests of the parts of its file that were found equal to the plan, put in force or declined.
        enforced: The policies that its settled rules enforced; empty where that is not known any more.
    """

    settled: Mapping[str, str]
    enforced: frozenset[str] = frozenset()


class Proposal(NamedTuple):
    """A comparison of a configuration with the plan in force.

    Attributes:
        plan: The plan in force, with the parts that the configuration may change.
        taken: Names of these parts; none: `plan` is the one in force.
        declined: Names of the parts in which the configuration differs and may not decide.
        kept: The policies that declined rules would stop enforcing against a command or another file.
    """

    plan: Plan
    taken: tuple[str, ...]
    declined: tuple[str, ...]
    kept: tuple[str, ...] = ()

    def settled(self, file: Plan, last_start: LastStart | None) -> dict[str, str]:
        """Returns the digests to store: of a taken part the earlier one, until it is in force."""
        earlier = {} if last_start is None else last_start.settled
        digests = {
            part: earlier.get(part, "") if part in self.taken else digest
            for part, digest in file.parts.items()
        }
        return {part: digest for part, digest in digests.items() if digest}


class Agreement(NamedTuple):
    """By which plan an analyzer counts, and what is in force.

    Attributes:
        version: Of the plan in force.
        in_force: The plan in force.
        plan: The plan to count by: the one in force, or a proposal, which comes in force with the first
            flush that counted a record by it.
        name: The analyzer's, where its file is remembered; "" for commands.
        file: Digests of the parts of its file, to be remembered when the proposal comes in force.
        notes: What differs and why, one sentence each, for the log.
        is_waiting: Whether the configuration is not proposed as long as analyzers of an earlier version live.
    """

    version: int
    in_force: Plan
    plan: Plan
    name: str = ""
    file: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    is_waiting: bool = False

    @classmethod
    def of(cls, version: int, plan: Plan) -> Agreement:
        """Returns the agreement of an analyzer that proposes nothing."""
        return cls(version, plan, plan)

    @property
    def is_proposal(self) -> bool:
        return self.plan.digest != self.in_force.digest


def propose(in_force: Plan, file: Plan, last_start: LastStart | None, *, is_alone: bool) -> Proposal:
    """Returns what the configuration `file` of an analyzer changes in the plan.

    `last_start` is None for an unknown analyzer; `is_alone` says that no analyzer of another name has
    lived for a minute.
    """
    accepted: list[str] = []
    declined: list[str] = []
    kept: tuple[str, ...] = ()
    for part, digest in file.parts.items():
        if digest == in_force.parts.get(part):
            continue
        is_added = part != RULES and part not in in_force.parts
        is_edited = is_alone if last_start is None else last_start.settled.get(part) != digest
        if part == RULES and is_edited:
            kept = overruled(in_force, file, last_start)
        (accepted if is_added or (is_edited and not (part == RULES and kept)) else declined).append(part)
    return Proposal(merged(in_force, file, accepted), tuple(accepted), tuple(declined), kept)


def overruled(in_force: Plan, file: Plan, last_start: LastStart | None) -> tuple[str, ...]:
    """Returns the policies that `file` would stop enforcing although it never enforced them itself.

    Such a policy is enforced by a command or by another file. One that this analyzer's file enforced before
    was edited in it, and that is the operator's word.
    """
    stopped = unenforced(in_force, merged(in_force, file, [RULES]))
    if last_start is None:
        return stopped
    if last_start.settled.get(RULES) == in_force.parts.get(RULES):
        return ()
    return tuple(name for name in stopped if name not in last_start.enforced)


def merged(in_force: Plan, file: Plan, accepted: list[str] | tuple[str, ...]) -> Plan:
    """Returns the plan in force with these parts of `file`."""
    plan = in_force.with_rules(file) if RULES in accepted else in_force
    sources = {name: mapping for name, mapping in file.sources.items() if SOURCE + name in accepted}
    return plan.with_sources(dict(plan.sources) | sources) if sources else plan


def promoted(in_force: Plan, name: str) -> Plan | None:
    """Returns the plan in which a policy has the settings of its candidate, or else is enforced.

    One of several periods is enforced in all of them. None if it has no candidate and is enforced. Raises
    LookupError if there is no such policy.
    """
    family = () if name != base_name(name) else in_force.family(name)
    if periods := [policy.name for policy in family if base_name(policy.name) != name]:
        plan = in_force
        for period in periods:
            plan = promoted(plan, period) or plan
        return None if plan is in_force else plan
    policy, candidate = in_force.policy(name), in_force.policy(name + CANDIDATE)
    if policy is None or name != base_name(name):
        raise LookupError(name)
    if candidate is not None:
        names = candidate.__struct_fields__  # type: ignore[attr-defined] # each kind is a Struct
        kept_values = {key: getattr(policy, key, msgspec.UNSET) for key in KEPT_BY_PROMOTION if key in names}
        new = msgspec.structs.replace(cast(Any, candidate), **kept_values)
    elif policy.is_shadow:
        new = msgspec.structs.replace(cast(Any, policy), mode=IN_FORCE)
    else:
        return None
    remaining = tuple(policy for policy in in_force.policies if base_name(policy.name) != name)
    plan = make_plan(
        in_force.groupings,
        in_force.meters,
        [*remaining, new],
        in_force.sources,
        in_force.overrides,
        in_force.named_values,
    )
    return plan.with_forgotten(in_force.forgotten)


def applied(in_force: Plan, file: Plan, *, prune: bool) -> Plan:
    """Returns the plan after `policies apply`: every part of `file`; with `prune` nothing else.

    Callers that were forgotten stay so: no file states them.
    """
    return file.with_forgotten(in_force.forgotten) if prune else merged(in_force, file, tuple(file.parts))
