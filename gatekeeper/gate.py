"""The gate: knows the locks, decides from memory, and says how old its knowledge is."""

from __future__ import annotations

import functools
import logging
import threading
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from gatekeeper.callbacks import ChangeCallbacks
from gatekeeper.clock import SYSTEM_CLOCK, Clock, PeriodicTask
from gatekeeper.feed.poller import GateKnowledge, Poller, longest_fetch
from gatekeeper.gate_options import (
    STALE,
    CheckingLimiter,
    check_stale,
    is_switched_off,
    make_slow_locks,
    open_lock_source,
    open_view_file,
    share_poller,
    status_sink,
)
from gatekeeper.lifecycle import register
from gatekeeper.model import ALLOWED, Decision, LockSource, Refused, StatusSink
from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.fast_path import ALLOW_ALL, TO_SLOW_PATH, fast_path_of
from gatekeeper.view.lock_tuples import ACTION, END, ON_STALE, LockTuple
from gatekeeper.view.lock_view import NO_SCOPES, RequestScopes, request_scopes
from gatekeeper.view.lookup_keys import normalize_route
from gatekeeper.view.precedence import decide
from gatekeeper.view.sharded_table import LockTable, release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gatekeeper.telemetry.gate_status import StatusRecorder
    from gatekeeper.view.precedence import SlowLimit

log = logging.getLogger("gatekeeper")

RESTART_EVERY_S = 1.0  # a poller that dies at once must not cost each request a thread
CLOSE_S = 2.0  # how long `close` waits for a poll that is going on


class Gate:
    """Refuses the callers that have a lock, by what a poller in the background has learnt.

    `source` is a URL (see `gatekeeper.sources.open_source`) or a LockSource. Nothing is started
    here: the first check does that, also in a process that was forked later, or `start`, or `with`.

    `stale_after` seconds after the last answer's question was asked the view is stale. Then each
    lock follows its policy's `on_stale`: it is kept until its end, or lets pass. Callers without a
    lock follow this one: "allow", "deny" (503) or a limiter. A gate that is new has as long to get
    its first answer, and lets callers without a lock pass meanwhile.

    `saved` names a file to keep the view in, for a start while the source is away. With `shared`
    all processes of this machine that have the same `saved` share one poller. `on_change` and
    `on_health` are called with this gate, in a thread of their own, when the view or `healthy` has
    changed. With `shadow` nobody is refused: the decision is true, and says what it would have been.
    With `report_status` it tells the source of itself: which locks it met how often, and some of the callers
    it was asked for; left out, the source decides.

    Raises ValueError for a setting that cannot be, ImportError when the source needs what is not
    installed.
    """

    def __init__(
        self,
        source: str | LockSource,
        *,
        token: str | Path | None = None,
        stale_after: float = 30.0,
        on_stale: Literal["allow", "deny"] | CheckingLimiter = "allow",
        saved: Path | None = None,
        shared: bool = False,
        name: str = "",
        shadow: bool = False,
        report_status: bool | None = None,
        on_change: Callable[[Gate], object] | None = None,
        on_health: Callable[[Gate], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_stale(stale_after, on_stale)
        source = open_lock_source(source, token, stale_after)
        self._source = share_poller(source, saved, stale_after, clock) if shared else source
        self._clock = clock
        self._watching = ChangeCallbacks(on_change, on_health, clock)
        self._stale_after_s = stale_after
        self._on_stale = on_stale
        self._shelf = None if saved is None else open_view_file(saved)
        self._name = name
        self._shadow = shadow
        self._hearing = status_sink(source, report_status)
        self._slowing: SlowLimit | None = None  # made when the first lock that slows is there
        self._known = GateKnowledge()
        self._begun_s: float | None = None  # uptime at the first start
        self._forget_threads()
        self._closed = False
        self._complained = False
        register(self, Gate._forget_threads, Gate.close)

    def _forget_threads(self) -> None:
        """Begin without threads: at birth, and in a forked child, where the parent's are not."""
        self._divert()  # what is looked at: `_locked` by `allow`, `_look` by `check`
        self._ready = TO_SLOW_PATH  # ... once no more callers need to be noted
        self._off = is_switched_off()
        self._telling: StatusRecorder | None = None  # of this process alone
        self._mutex = threading.Lock()  # never waited for while a request is served
        self._answered = threading.Event()
        self._running: PeriodicTask | None = None
        self._poller: Poller | None = None
        self._restart_s = -inf  # the next start not before this uptime
        self._watching.forget_threads()

    # -- asking --------------------------------------------------------------------------------

    def allow(self, caller: str) -> bool:
        """Whether `caller` may pass: from memory; reads no clock, never blocks, never raises."""
        try:
            # The poller swaps in a set that holds everybody when more than a look-up is called for.
            return caller not in self._locked or self.check(caller).allowed
        except Exception:  # noqa: BLE001 - a list, or whatever else can be no name
            return self._judge(NO_SCOPES).allowed

    def check(self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = "") -> Decision:
        """Whether a request of this caller, tenant and address for this resource may pass, by which
        policy not, and when again. From memory, as `allow`; what is no text says nothing.

        The strictest of the locks that apply answers: one that denies before one that slows, before one
        that tags; of those that deny the one that ends last. `also` names the others, `tags` all that tag.
        `resource` is the route pattern that the log is counted under, whatever its parts are called.
        """
        look = self._look  # read once: the poller may replace it meanwhile
        try:
            if (
                caller not in look.callers
                and (not address or address not in look.addresses)
                and (not address or look.ranges is None or not look.ranges.meet(address))
                and (not resource or look.routes is None or normalize_route(resource) not in look.routes)
                and (not tenant or tenant not in look.tenants)
            ):
                return ALLOWED
        except Exception:  # noqa: BLE001, S110 - something that can be no name; the rest is asked for below
            pass
        return self._judge(request_scopes(caller, tenant, address, resource))

    def _judge(self, asked: RequestScopes) -> Decision:
        """The same for a request that has a lock, or while more than a look-up is called for."""
        if self._running is None or not self._running.alive:
            self._revive()
        telling = self._telling
        if telling is not None and telling.is_sampling and telling.sample(asked.caller):
            self._enough_notes()
        known = self._known  # read once, as above
        now_s, now_ns = self._clock.uptime_s(), self._clock.wall_ns()
        if self._off or known.view.suspended(now_ns):
            return ALLOWED
        is_stale = now_s - known.confirmed_s > self._stale_after_s
        locks = [
            held
            for held in known.view.of(asked)
            if now_ns < held[END]
            and held[ACTION] != "suspend"
            and not (is_stale and held[ON_STALE] == "allow")
        ]
        decision = self._of_locks(locks, asked, now_s, now_ns)
        if telling is not None:
            telling.count_hits(locks, decision)
        if self._shadow and not decision.allowed:
            return decision._replace(allowed=True, shadow=True, retry_after=0.0)
        return decision

    def _of_locks(self, locks: list[LockTuple], asked: RequestScopes, now_s: float, now_ns: int) -> Decision:
        if all(held[ACTION] == "tag" for held in locks):  # or there are none
            decision = self._without_lock(asked.caller or asked.address, now_s)
            if not locks or not decision.allowed:
                return decision
        return decide(locks, now_ns, self._slowing)

    def enforce(
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = ""
    ) -> Decision:
        """The same, but a refusal is raised as Refused, which carries the decision."""
        decision = self.check(caller, resource=resource, address=address, tenant=tenant)
        if not decision.allowed:
            raise Refused(decision)
        return decision

    def _without_lock(self, key: str, now_s: float) -> Decision:
        if self._on_stale == "allow" or now_s <= self._patient_until_s(self._known):
            return ALLOWED
        if self._on_stale == "deny":
            return STALE
        try:
            return self._on_stale.check(key)
        except Exception:
            if not self._complained:  # and not for each request
                log.exception("the limiter that was chosen for a stale view failed; callers pass")
            self._complained = True
            return ALLOWED

    def _patient_until_s(self, known: GateKnowledge) -> float:
        """Uptime until which callers without a lock pass whatever the application chose for later."""
        begun_s = self._clock.uptime_s() if self._begun_s is None else self._begun_s
        return max(known.confirmed_s, begun_s) + self._stale_after_s

    # -- its health ----------------------------------------------------------------------------

    @property
    def age(self) -> float:
        """Seconds since the question was asked that the view answers; infinite before the first answer."""
        return self._clock.uptime_s() - self._known.confirmed_s

    @property
    def version(self) -> int:
        """The feed's version that the view is at; 0 before the first answer."""
        at = self._known.view.at
        return 0 if at is None else at.version

    @property
    def healthy(self) -> bool:
        """Whether the poller lives and the view is not stale."""
        running = self._running
        return running is not None and running.alive and self.age <= self._stale_after_s

    @property
    def off(self) -> Literal["", "process", "fleet"]:
        """Who threw the off switch: GATEKEEPER=off in this process, `gatelock locks suspend` for all;
        "" while locks are enforced."""
        if self._off:
            return "process"
        return "fleet" if self._known.view.suspended(self._clock.wall_ns()) else ""

    @property
    def behind(self) -> float:
        """Seconds that the analyzers were behind the log, by the last answer."""
        return self._known.behind

    @property
    def clock_skew(self) -> float:
        """Seconds that this machine's clock is ahead of the source's. Shown, not believed: locks end
        by this machine's."""
        return self._known.clock_skew

    @property
    def ignored(self) -> Mapping[str, int]:
        """What the feed said that this version does not know and does not enforce ("action slow"),
        and how often it was met."""
        return self._known.view.ignored

    # -- its poller ----------------------------------------------------------------------------

    def start(self) -> Self:
        """Start polling now rather than at the first check; again changes nothing."""
        with self._mutex:
            self._closed = False
            self._start_poller()
        return self

    def ready(self, timeout: float) -> bool:
        """Whether the source has answered, now or within `timeout` seconds."""
        self.start()
        return self._clock.wait(self._answered, timeout)

    def close(self) -> None:
        """Stop polling and give back what the source holds. Checks go on by the last view, which
        grows stale; `start` begins again."""
        with self._mutex:
            self._closed = True
            running, poller = self._running, self._poller
            self._running = self._poller = None
            self._divert()
        if running is not None and poller is not None:
            running.stop(0.0)
            self._source.close()  # ends a fetch that waits for news
            running.stop(CLOSE_S)
            poller.finish()
            self._watching.close(CLOSE_S)
        self._source.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _revive(self) -> None:
        """Start the poller if nobody else is doing it: the first check, or its thread has ended."""
        if (
            self._closed
            or self._clock.uptime_s() < self._restart_s
            or not self._mutex.acquire(blocking=False)
        ):
            return
        try:
            self._start_poller()
        except RuntimeError as error:  # no thread to be had, or the interpreter is going down
            log.warning("the poller cannot be started: %s", error)
        finally:
            self._mutex.release()

    def _start_poller(self) -> None:
        if self._running is not None and self._running.alive:
            return
        now_s = self._clock.uptime_s()
        self._restart_s = now_s + RESTART_EVERY_S
        if self._begun_s is None:
            self._begun_s = now_s
        self._poller = Poller(
            self._source, self._clock, self._known, pace_max_s=self._stale_after_s / 2, shelf=self._shelf
        )
        turn = functools.partial(self._turn, self._poller)
        self._running = self._clock.run(turn, f"gatelock {self._name}".strip())

    def _turn(self, poller: Poller) -> float:
        try:
            self._off = is_switched_off()
            if self._hearing is not None and not poller.failures:
                self._tell(self._hearing)
            self._beware(longest_fetch(self._source))
            wait_s = poller.turn()
            if self._slowing is not None:
                self._slowing.tidy()
            elif poller.known.view.slows:
                self._slowing = make_slow_locks(self._clock)
            old: list[LockTable] = list(self._known.view.tables.values())
            with self._mutex:
                if poller is self._poller:
                    self._know(poller.known, wait_s)
            self._forget(old)
            stale_in_s = self._patient_until_s(poller.known) - self._clock.uptime_s()
            return min(wait_s, self._watching.look(self, poller.known.view.at, stale_in_s))
        except BaseException:
            self._divert()  # this thread ends; the next check notices and starts another
            log.exception("the poller of the lock feed ended; the next request starts another")
            raise

    def _know(self, known: GateKnowledge, wait_s: float) -> None:
        self._known = known
        if known.view.at is not None:
            self._answered.set()
        soon_stale = self._clock.uptime_s() + wait_s >= self._patient_until_s(known)
        if self._off:
            self._ready = ALLOW_ALL
        elif self._on_stale != "allow" and soon_stale:
            self._ready = TO_SLOW_PATH
        else:
            self._ready = fast_path_of(known.view)
        self._settle()

    def _settle(self) -> None:
        """Let clear requests pass by a look-up again, unless callers are to be noted."""
        if self._telling is None or not self._telling.is_sampling:
            self._look, self._locked = self._ready, self._ready.callers

    def _beware(self, longest_s: float) -> None:
        """Have the clock looked at for each request if the view may become stale in so many seconds."""
        back_s = self._clock.uptime_s() + longest_s
        if self._on_stale != "allow" and back_s >= self._patient_until_s(self._known):
            self._ready = TO_SLOW_PATH
            self._divert()

    def _divert(self) -> None:
        """Send every request to where the clock and the poller are looked at."""
        self._look, self._locked = TO_SLOW_PATH, TO_SLOW_PATH.callers

    def _forget(self, old: list[LockTable]) -> None:
        """Give back what only the `old` tables held."""
        for _ in with_pauses(release(old, self._known.view.tables.values())):
            pass

    # -- what it tells -------------------------------------------------------------------------

    def _tell(self, sink: StatusSink) -> None:
        """Tell the source of this gate, if it is time, and have callers noted anew."""
        now_s, known = self._clock.uptime_s(), self._known
        if known.view.at is None:
            return
        if self._telling is None:
            from gatekeeper.telemetry.gate_status import StatusRecorder  # for those who tell

            self._telling = StatusRecorder(self._name, self._stale_after_s, now_s)
        if self._telling.is_due(now_s):
            self._beware(longest_fetch(sink))
            mode = self.off or ("shadow" if self._shadow else "")
            self._telling.report(sink, now_s, known, mode)
            self._divert()  # for so many callers as are wanted: who is not noted pays nothing for it

    def _enough_notes(self) -> None:
        if self._mutex.acquire(blocking=False):  # else the next turn does it
            try:
                self._settle()
            finally:
                self._mutex.release()
