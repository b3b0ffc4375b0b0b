"""Mutations of a gate, each of which breaks one promise, to show that a run detects it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gatekeeper import gate, gate_runtime
from gatekeeper.feed import feed_json, poller
from gatekeeper.feed.poller import Poller
from gatekeeper.model import SourceError
from gatekeeper.view import lock_tuples, lock_view, sharded_table
from gatekeeper.view.lock_tuples import ChangeTuple
from gatekeeper.view.lock_view import EMPTY
from tests.faults.mutations import Patch


def never_stale(patch: Patch) -> None:
    """A failed fetch confirms the view, too."""
    fail = Poller._fail

    def confirms(self: Poller, error: Exception, **options: bool) -> None:
        fail(self, error, **options)
        self.known = self.known._replace(confirmed_s=self._clock.uptime_s())

    patch.setattr(Poller, "_fail", confirms)


def not_stale_during_a_fetch(patch: Patch) -> None:
    """A fetch is assumed to take no time, so a view that becomes stale meanwhile is not noticed."""
    patch.setattr(gate_runtime, "longest_fetch", lambda _source: 0.0)


def ended_locks_kept(patch: Patch) -> None:
    """Locks apply for five seconds after their end."""
    packed = lock_view.packed

    def prolonged(changes: Any) -> Iterator[ChangeTuple]:
        for change in packed(changes):
            if lock_tuples.is_set(change):
                yield (*change[:-1], change[-1] + 5_000_000_000)
            else:
                yield change

    patch.setattr(lock_view, "packed", prolonged)


def pruned_forever(patch: Patch) -> None:
    """Locks that were removed while the clock was ahead are not fetched again."""
    fetch = Poller._fetch

    def forgets(self: Poller) -> None:
        self._pruned_ns = 0
        fetch(self)

    patch.setattr(Poller, "_fetch", forgets)


def half_answers_applied(patch: Patch) -> None:
    """An incomplete answer counts as a complete one with fewer changes."""
    items_by_line = feed_json._items_by_line

    def lenient(lines: Iterable[bytes]) -> Iterator[feed_json.JsonItem]:
        try:
            yield from items_by_line(lines)
        except feed_json.MalformedLine:
            return

    patch.setattr(feed_json, "_items_by_line", lenient)
    patch.setattr(feed_json, "_verify_checksum", lambda items, _checksum: items)


def half_changes_applied(patch: Patch) -> None:
    """An error while an update is applied keeps what was applied before it."""
    packed = lock_view.packed

    def lenient(changes: Any) -> Iterator[ChangeTuple]:
        try:
            yield from packed(changes)
        except MemoryError:
            return

    patch.setattr(lock_view, "packed", lenient)


def cursor_before_applying(patch: Patch) -> None:
    """The cursor advances before the changes are applied, so those that fail are never fetched again."""
    polling: list[Poller] = []
    apply, fetch = poller.apply, Poller._fetch

    def applies(known: Any, update: Any) -> Any:
        polling[-1]._since = update.at
        return apply(known, update)

    def fetches(self: Poller) -> None:
        polling.append(self)
        fetch(self)
        polling.pop()

    patch.setattr(poller, "apply", applies)
    patch.setattr(Poller, "_fetch", fetches)


def locks_lost_with_the_source(patch: Patch) -> None:
    """A failed fetch empties the view."""
    fail = Poller._fail

    def empties(self: Poller, error: Exception, **options: bool) -> None:
        fail(self, error, **options)
        self.known = self.known._replace(view=EMPTY)
        self._since = None

    patch.setattr(Poller, "_fail", empties)


def cleared_locks_kept(patch: Patch) -> None:
    """A lock that was cleared stays until its end."""
    change = sharded_table.TableBuilder.change

    def adds(self: sharded_table.TableBuilder, key: Any, changed: ChangeTuple) -> int:
        return change(self, key, changed) if lock_tuples.is_set(changed) else 0

    patch.setattr(sharded_table.TableBuilder, "change", adds)


def snapshots_added(patch: Patch) -> None:
    """A snapshot adds to the known locks instead of replacing them."""
    patch.setattr(lock_view, "_without_locks", lambda view: view)


def on_stale_forgotten(patch: Patch) -> None:
    """A lock with on_stale "allow" is enforced although the view is stale."""
    patch.setattr(gate, "ON_STALE", lock_tuples.SCOPE)


def back_off_without_ceiling(patch: Patch) -> None:
    """The back-off has no ceiling, so the recovery from a long outage is noticed late."""
    patch.setattr(poller, "CEILING_S", 1e9)


def gives_up(patch: Patch) -> None:
    """After five failures in a row the source is not polled again."""
    fetch = Poller._fetch

    def fetches(self: Poller) -> None:
        if self.failures < 5:
            fetch(self)
        else:
            self._fail(SourceError("given up"))
            self._fetch_s = self._clock.uptime_s() + 10.0

    patch.setattr(Poller, "_fetch", fetches)


MUTATIONS = {
    mutation.__name__: mutation
    for mutation in (
        never_stale,
        not_stale_during_a_fetch,
        ended_locks_kept,
        pruned_forever,
        half_answers_applied,
        half_changes_applied,
        cursor_before_applying,
        locks_lost_with_the_source,
        cleared_locks_kept,
        snapshots_added,
        on_stale_forgotten,
        back_off_without_ceiling,
        gives_up,
    )
}
