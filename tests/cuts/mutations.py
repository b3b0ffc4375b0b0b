"""Gates broken on purpose, each in one promise, to show that the run would notice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from gatekeeper import gate
from gatekeeper.feed import feed_json, poller
from gatekeeper.feed.poller import Poller
from gatekeeper.model import Lock, SourceError
from gatekeeper.view import lock_tuples, lock_view, sharded_table
from gatekeeper.view.lock_tuples import LockKeyTuple, LockTuple
from gatekeeper.view.lock_view import EMPTY


class Patch(Protocol):
    """What takes something out: pytest's monkeypatch, or `setattr` where nobody needs it back."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...


def never_stale(patch: Patch) -> None:
    """A question without an answer confirms the view too."""
    failed = Poller._failed

    def fails(self: Poller, error: Exception, **how: bool) -> None:
        failed(self, error, **how)
        self.known = self.known._replace(confirmed_s=self._clock.uptime_s())

    patch.setattr(Poller, "_failed", fails)


def not_stale_while_it_asks(patch: Patch) -> None:
    """Nobody thinks of it that the answer may take longer than the view has left."""
    patch.setattr(gate, "longest_fetch", lambda _source: 0.0)


def ended_locks_kept(patch: Patch) -> None:
    """For five seconds longer, as by somebody who waits for the source to lift them."""

    def longer(lock: Lock) -> LockTuple:
        row = pack_lock(lock)
        return (*row[:-1], row[-1] + 5_000_000_000)

    pack_lock = lock_tuples.pack_lock
    patch.setattr(lock_tuples, "pack_lock", longer)


def pruned_for_ever(patch: Patch) -> None:
    """What was forgotten by a clock that was wrong is not asked for again."""
    ask = Poller._ask

    def asks(self: Poller) -> None:
        self._pruned_ns = 0
        ask(self)

    patch.setattr(Poller, "_ask", asks)


def half_answers_applied(patch: Patch) -> None:
    """What can be read of the changes counts, and the rest is thought not to be there."""
    on_lines = feed_json._items_by_line

    def lenient(lines: Iterable[bytes]) -> Iterator[feed_json.JsonItem]:
        try:
            yield from on_lines(lines)
        except feed_json.MalformedLine:
            return

    patch.setattr(feed_json, "_items_by_line", lenient)
    patch.setattr(feed_json, "_verify_checksum", lambda items, _wanted: items)


def half_changes_applied(patch: Patch) -> None:
    """An update that breaks off while it is applied leaves what was applied by then."""

    def lenient(changes: Any) -> Iterator[LockTuple | LockKeyTuple]:
        try:
            yield from packed(changes)
        except MemoryError:
            return

    packed = lock_view.packed
    patch.setattr(lock_view, "packed", lenient)


def cursor_before_applying(patch: Patch) -> None:
    """The version is noted as soon as the answer is there; what fails afterwards is never asked for again."""

    def noted(known: Any, update: Any) -> Any:
        asking[-1]._since = update.at
        return apply(known, update)

    def asks(self: Poller) -> None:
        asking.append(self)
        ask(self)
        asking.pop()

    asking: list[Poller] = []
    apply, ask = poller.apply, Poller._ask
    patch.setattr(poller, "apply", noted)
    patch.setattr(Poller, "_ask", asks)


def locks_lost_with_the_source(patch: Patch) -> None:
    """Nothing is known, rather than something old."""
    failed = Poller._failed

    def fails(self: Poller, error: Exception, **how: bool) -> None:
        failed(self, error, **how)
        self.known = self.known._replace(view=EMPTY)
        self._since = None

    patch.setattr(Poller, "_failed", fails)


def lifted_locks_kept(patch: Patch) -> None:
    """A lock that was lifted by hand stays until its end."""
    change = sharded_table.TableBuilder.change

    def adds(self: sharded_table.TableBuilder, key: Any, row: LockTuple | LockKeyTuple) -> int:
        return change(self, key, row) if lock_tuples.is_set(row) else 0

    patch.setattr(sharded_table.TableBuilder, "change", adds)


def snapshots_added(patch: Patch) -> None:
    """All locks are added to those that are known, instead of taking their place."""
    patch.setattr(lock_view, "_without_locks", lambda known: known)


def on_stale_forgotten(patch: Patch) -> None:
    """A lock whose policy lets pass when the view is stale refuses on."""
    patch.setattr(gate, "ON_STALE", lock_tuples.SCOPE)


def back_off_without_ceiling(patch: Patch) -> None:
    """After a long cut it is not noticed for as long again that the source is back."""
    patch.setattr(poller, "CEILING_S", 1e9)


def gives_up(patch: Patch) -> None:
    """Whoever cannot be asked five times is not asked a sixth time."""

    def asks(self: Poller) -> None:
        if self.failures < 5:
            ask(self)
        else:
            self._failed(SourceError("given up"))
            self._ask_s = self._clock.uptime_s() + 10.0

    ask = Poller._ask
    patch.setattr(Poller, "_ask", asks)


MUTATIONS = {
    each.__name__: each
    for each in (
        never_stale,
        not_stale_while_it_asks,
        ended_locks_kept,
        pruned_for_ever,
        half_answers_applied,
        half_changes_applied,
        cursor_before_applying,
        locks_lost_with_the_source,
        lifted_locks_kept,
        snapshots_added,
        on_stale_forgotten,
        back_off_without_ceiling,
        gives_up,
    )
}
