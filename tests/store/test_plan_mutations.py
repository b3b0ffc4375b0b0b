"""The stories of a fleet fail where a rule of the agreement on a plan is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush import analyzers
from analyzer.flush.flush import SqlFlush
from analyzer.plan import proposals
from analyzer.plan.plan import Plan
from analyzer.plan.stretches import KnownStretches
from tests.store import fleet_of_analyzers, test_plan_of_a_fleet
from tests.store.fleet_of_analyzers import Fleet

Patch = pytest.MonkeyPatch


def proposes_at_every_start(patch: Patch) -> None:
    patch.setattr(analyzers, "propose", with_before(lambda _before: proposals.LastStart({})))


def never_proposes_again(patch: Patch) -> None:
    """A file that was ever in force is taken for an old one, as by a comparison with all earlier plans."""
    patch.setattr(SqlFlush, "put_in_force", _by_the_plan_in_force)


def believes_an_unknown_name(patch: Patch) -> None:
    patch.setattr(analyzers, "propose", with_before(lambda before: before or proposals.LastStart({})))


def comes_in_force_at_once(patch: Patch) -> None:
    agree = analyzers.SqlAgreement.agree

    def activating(self: Any) -> Any:
        agreement = agree(self)
        if agreement.is_proposal:
            with analyzers.writing(self._engine) as db:
                analyzers.plans.activate(db, agreement.plan, lambda: "mark", "web-1:1")
                analyzers.settle(db, agreement)
        return agree(self)

    patch.setattr(analyzers.SqlAgreement, "agree", activating)


def keeps_its_own_mapping(patch: Patch) -> None:
    init = fleet_of_analyzers.FleetAnalyzer.__init__

    def with_own(self: Any, fleet: Fleet, name: str, file: Plan, number: int, **options: Any) -> None:
        init(self, fleet, name, file, number, **options)
        own = self.daemon.counter_for
        self.daemon.counter_for = lambda plan: own(plan.with_sources(file.sources))

    patch.setattr(fleet_of_analyzers.FleetAnalyzer, "__init__", with_own)


def settles_before_it_is_in_force(patch: Patch) -> None:
    patch.setattr(proposals.Proposal, "settled", lambda _self, file, _before: dict(file.parts))


def forgets_what_is_missing(patch: Patch) -> None:
    patch.setattr(proposals, "merged", lambda _in_force, file, _taken: file)


def waits_for_no_earlier_version(patch: Patch) -> None:
    patch.setattr(analyzers, "_behind", lambda *_: [])


def forgets_what_it_has_settled(patch: Patch) -> None:
    patch.setattr(analyzers.SqlAgreement, "_known_here", lambda *_: {})


def notes_no_stretch(patch: Patch) -> None:
    patch.setattr(KnownStretches, "note", lambda *_: None)


def with_before(changed: Callable[[Any], Any]) -> Callable[..., Any]:
    propose = proposals.propose
    return lambda in_force, file, before, **rest: propose(in_force, file, changed(before), **rest)


def _by_the_plan_in_force(self: SqlFlush, agreement: Any) -> Any:
    return agreement.version, self.check_plan(agreement.in_force, agreement.version)


STORIES = test_plan_of_a_fleet
CAUGHT = (
    (proposes_at_every_start, STORIES.test_one_edited_file_is_kept_when_the_others_restart),
    (never_proposes_again, STORIES.test_a_file_that_is_put_back_is_an_edit),
    (believes_an_unknown_name, STORIES.test_a_colleagues_file_opens_no_gate),
    (comes_in_force_at_once, STORIES.test_a_crash_loop_of_the_first_one_changes_nothing),
    (keeps_its_own_mapping, STORIES.test_records_are_counted_by_the_mapping_in_force_and_not_by_the_files),
    (settles_before_it_is_in_force, STORIES.test_a_crash_loop_of_the_first_one_changes_nothing),
    (forgets_what_is_missing, STORIES.test_a_part_that_a_file_lacks_stays_in_force),
    (waits_for_no_earlier_version, STORIES.test_an_analyzer_of_an_earlier_version_is_waited_for),
    (forgets_what_it_has_settled, STORIES.test_processes_of_one_name_with_different_files_take_no_turns),
    (notes_no_stretch, STORIES.test_a_rolling_change_is_taken_by_those_that_still_have_the_old_file),
)


@pytest.mark.parametrize(("mutation", "story"), CAUGHT, ids=lambda one: one.__name__)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_stories_fail_without_the_rule(
    mutation: Callable[[Patch], None],
    story: Callable[[Fleet], None],
    new_engine: Callable[[], sa.Engine],
    monkeypatch: Patch,
) -> None:
    mutation(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        story(Fleet(new_engine))
