"""The gate: decides from memory whether a request may pass, and reports how current its view is."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from gatekeeper.callbacks import ChangeCallbacks
from gatekeeper.clock import SYSTEM_CLOCK, Clock
from gatekeeper.gate_options import STALE, CheckingLimiter, make_options
from gatekeeper.gate_runtime import GateRuntime
from gatekeeper.model import ALLOWED, Decision, LockSource, Refused
from gatekeeper.view.fast_path import FastPath
from gatekeeper.view.lock_tuples import ACTION, END, ON_STALE, LockTuple
from gatekeeper.view.lock_view import NO_SCOPES, RequestScopes, named_values, request_scopes
from gatekeeper.view.lookup_keys import normalize_route
from gatekeeper.view.precedence import decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from gatekeeper.caller_view import CallerView
    from gatekeeper.startup import StartupWait
    from gatekeeper.telemetry.gate_counts import GateMeasurements

__all__ = ["Gate"]

log = logging.getLogger("gatekeeper")


class Gate:
    """Denies requests of callers that have a lock. Answers from memory; a background thread polls for locks.

    The first check starts the thread, also in a process that was forked later; so do `start`, `ready` and
    `with`. Making a gate starts nothing, connects to nothing and cannot block. All methods may be called from
    any thread. A request never waits: no method that decides on one waits for a mutex, does I/O or raises
    (`enforce` raises Refused). `caller_view` decides nothing, and asks the server.

    The view is stale when more than `stale_after` seconds have passed since the last successful poll began.
    Then each lock follows the `on_stale` of its policy: it is enforced until its end, or ignored. Callers
    without a lock follow the `on_stale` of the gate. A new gate has `stale_after` seconds to get its first
    answer, in which callers without a lock pass.

    Args:
        source: The URL of a source (`https://HOST:PORT`, `postgresql+psycopg://USER@HOST/DATABASE`,
            `sqlite:///PATH`, `file:///PATH`), or a LockSource.
        token: For a URL of a server: the token that `gatelock upkeep tokens create` printed, or the path of a
            file that holds it. By default $GATEKEEPER_TOKEN, otherwise the file that $GATEKEEPER_TOKEN_FILE
            names.
        stale_after: Seconds after which a view that was not confirmed is stale.
        on_stale: What callers without a lock get when the view is stale: "allow", "deny" (status 503), or the
            decision of a limiter.
        saved: The path of a file in which the gate saves its view, for a start while the source is
            unavailable. Written every 10 seconds at most, used for a day. By default none.
        shared: Whether all processes of this machine that have the same `saved` share one poller.
        name: The name of the application, in the status reports and in the name of the thread.
        startup_wait: Seconds that the first requests of a process wait at a guard for the first answer of the
            source; 0: they do not wait. `check` and `allow` never wait.
        values: Names of the named values that the application passes to `check`, such as "model" for
            `gate.check(caller, model="large")`: those of `[[groupings]]` in the analyzer's configuration.
        shadow: Whether to deny no request: decisions are allowed, and `Decision.shadow` is true where one
            would have been denied.
        report_status: Whether to report the gate's status to the source: which locks applied how often, and a
            sample of callers. None, the default, leaves it to the source: servers get reports, databases not.
        on_change: Called with this gate, in a separate thread, when the view has a new version.
        on_health: Called with this gate, in the same thread, when `healthy` changed.
        clock: Time, randomness and threads; tests pass a `gatekeeper.testing.ManualClock`.

    Raises:
        ValueError: An argument is invalid, or `token`, `shared` or `report_status` does not fit the source.
        TypeError: An argument has the wrong type.
        ImportError: A package that the source needs is not installed; the message names the extra.

    Example:
        >>> from datetime import UTC, datetime, timedelta
        >>> from gatekeeper import Lock
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> now = datetime.now(UTC)
        >>> locks = FixedSource(Lock("caller", "api_key:acme", "daily", now, now + timedelta(hours=1)))
        >>> with Gate(locks) as gate:
        ...     gate.ready(timeout=5), gate.allow("api_key:bob"), gate.check("api_key:acme").policy
        (True, True, 'daily')
    """

    def __init__(
        self,
        source: str | LockSource,
        *,
        token: str | Path | None = None,
        stale_after: float = 30.0,
        on_stale: Literal["allow", "deny"] | CheckingLimiter = "allow",
        saved: Path | str | None = None,
        shared: bool = False,
        name: str = "",
        startup_wait: float = 0.5,
        values: Iterable[str] = (),
        shadow: bool = False,
        report_status: bool | None = None,
        on_change: Callable[[Gate], object] | None = None,
        on_health: Callable[[Gate], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if values and type(self) is Gate:
            # A method that takes any keyword makes a dict for each call, a fifth of the cost of `check` and a
            # third of that of `allow`: only gates with named values have such methods.
            self.__class__ = ValueGate
        self._options = make_options(
            source,
            token=token,
            stale_after=stale_after,
            on_stale=on_stale,
            saved=saved,
            shared=shared,
            name=name,
            startup_wait=startup_wait,
            values=values,
            shadow=shadow,
            report_status=report_status,
            clock=clock,
        )
        callbacks = ChangeCallbacks(self, on_change, on_health, clock)
        self._set_runtime(GateRuntime(self._options, self._set_fast_path, callbacks))
        self._limiter_failed = False

    def _set_runtime(self, runtime: GateRuntime) -> None:
        """Uses `runtime` from now on: tests of applications replace it."""
        self._runtime = runtime
        # For guards, which read the first and call the second for each request.
        self.startup: StartupWait = runtime.startup
        self.look_at_poller: Callable[[], None] = runtime.look_at_poller

    def _set_fast_path(self, path: FastPath) -> None:
        """Has requests look names up in `path` from now on. Called by FastPathSwitch and nothing else."""
        self._path, self._locked_callers = path, path.callers

    # -- deciding ------------------------------------------------------------------------------

    @overload
    def allow(self, caller: str) -> bool: ...
    @overload
    def allow(self, caller: str, **values: str) -> bool: ...
    def allow(self, caller: str) -> bool:  # type: ignore[misc]  # a ValueGate takes values
        """Returns whether a request of `caller` may pass. Never blocks, never raises; reads no clock unless
        the caller may have a lock.

        Args:
            caller: The typed name under which the log counts the caller, such as "api_key:acme".

        A gate with `values` takes these as keywords too.
        """
        try:
            # See gatekeeper/view/fast_path.py.
            return caller not in self._locked_callers or self.check(caller).allowed
        except Exception:  # noqa: BLE001 - `caller` is not hashable, and so not a name
            return self._decide(NO_SCOPES).allowed

    @overload
    def check(
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = ""
    ) -> Decision: ...
    @overload
    def check(
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = "", **values: str
    ) -> Decision: ...
    def check(  # type: ignore[misc]  # a ValueGate takes values
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = ""
    ) -> Decision:
        """Returns the decision on a request: whether it may pass, otherwise why not and until when.

        Never blocks, never raises. The strictest lock that applies decides: "deny" before "slow" before
        "tag", and of those that deny the one that ends last. `Decision.also` names the policies of the
        others that deny.

        Args:
            caller: The typed name under which the log counts the caller, such as "api_key:acme".
            resource: The route pattern under which the log counts the resource, such as "/v1/items/{id}"; the
                names of its parameters do not matter.
            address: The IP address, in any spelling.
            tenant: The tenant.

        A gate with `values` takes these as keywords too. An argument that is "" or not a str is absent, and
        no lock but those on everyone applies to it.
        """
        path = self._path  # read once: the poller may replace it at any moment
        try:
            if (
                caller not in path.callers
                and (not address or address not in path.addresses)
                and (not address or path.ranges is None or not path.ranges.has_lock(address))
                and (not resource or path.routes is None or normalize_route(resource) not in path.routes)
                and (not tenant or tenant not in path.tenants)
            ):
                return ALLOWED
        except Exception:  # noqa: BLE001, S110 - an argument is not hashable; the others are looked up below
            pass
        return self._decide(request_scopes(caller, tenant, address, resource))

    @overload
    def enforce(
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = ""
    ) -> Decision: ...
    @overload
    def enforce(
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = "", **values: str
    ) -> Decision: ...
    def enforce(  # type: ignore[misc]  # a ValueGate takes values
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = ""
    ) -> Decision:
        """Returns the decision of `check` when the request may pass. Never blocks.

        Args:
            caller: The typed name under which the log counts the caller, such as "api_key:acme".
            resource: The route pattern under which the log counts the resource.
            address: The IP address, in any spelling.
            tenant: The tenant.

        Raises:
            Refused: The request is denied; `Refused.decision` is the decision.
        """
        decision = self.check(caller, resource=resource, address=address, tenant=tenant)
        if not decision.allowed:
            raise Refused(decision)
        return decision

    # -- the caller's own view -----------------------------------------------------------------

    def caller_view(self, caller: str) -> CallerView:
        """Asks the server what a caller has used and what remains, for the application to pass on to it.

        The only method that does I/O for its caller: it blocks until the server has answered, usually for
        milliseconds, at most for the time-out of the source. No decision depends on it. The token needs the
        scope `callers`.

        Args:
            caller: The typed name of a caller that the application has authenticated, such as "api_key:acme".

        Raises:
            SourceError: The server did not answer in time, or refused.
            ValueError: The source is not a server, or `caller` has no kind.
        """
        from gatekeeper.caller_view import view_from

        return view_from(self._options.source, caller)

    async def caller_view_async(self, caller: str) -> CallerView:
        """Asks in a thread, as `caller_view` does; for asyncio applications.

        Args:
            caller: The typed name of a caller that the application has authenticated.

        Raises:
            SourceError: The server did not answer in time, or refused.
            ValueError: The source is not a server, or `caller` has no kind.
        """
        import asyncio

        return await asyncio.to_thread(self.caller_view, caller)

    # -- the decision --------------------------------------------------------------------------

    def _decide(self, scopes: RequestScopes) -> Decision:
        """The slow path: for a request that has a lock, or in a mode in which a look-up is not enough."""
        runtime, options = self._runtime, self._options
        runtime.look_at_poller()
        if not runtime.task.alive:
            runtime.restart()
        status = runtime.status
        if status is not None and status.is_sampling and status.sample(scopes.caller):
            runtime.finish_sampling()
        knowledge = runtime.knowledge  # read once, like the path
        now_s, now_ns = options.clock.uptime_s(), options.clock.wall_ns()
        if runtime.is_off or knowledge.view.is_suspended(now_ns):
            return ALLOWED
        applying = [
            lock
            for lock in knowledge.view.matching(scopes)
            if now_ns < lock[END] and lock[ACTION] != "suspend"
        ]
        is_stale = now_s - knowledge.confirmed_s > options.stale_after_s
        locks = [lock for lock in applying if lock[ON_STALE] != "allow"] if is_stale else applying
        decision = self._decide_by(locks, scopes, now_s, now_ns)
        if status is not None:
            status.count_hits(locks, decision)
        if options.shadow and not decision.allowed:
            decision = decision._replace(allowed=True, shadow=True, retry_after=0.0)
        if runtime.counts is not None:
            runtime.counts.add_check(decision, applying if is_stale else ())
        return decision

    def _decide_by(
        self, locks: list[LockTuple], scopes: RequestScopes, now_s: float, now_ns: int
    ) -> Decision:
        if all(lock[ACTION] == "tag" for lock in locks):  # or there are none
            decision = self._decide_without_lock(scopes.caller or scopes.address, now_s)
            if not locks or not decision.allowed:
                return decision
        return decide(locks, now_ns, self._runtime.slow_locks)

    def _decide_without_lock(self, key: str, now_s: float) -> Decision:
        on_stale = self._options.on_stale
        if on_stale == "allow" or now_s <= self._runtime.trusted_until_s(self._runtime.knowledge):
            return ALLOWED
        if on_stale == "deny":
            return STALE
        try:
            return on_stale.check(key)
        except Exception:
            if not self._limiter_failed:  # logged once, not for each request
                log.exception("the limiter for a stale view failed; callers without a lock pass")
            self._limiter_failed = True
            if self._runtime.counts is not None:
                self._runtime.counts.add_failing_open("limiter")
            return ALLOWED

    # -- health --------------------------------------------------------------------------------

    @property
    def age(self) -> float:
        """Seconds since the start of the poll that the view is from; infinite before the first answer."""
        return self._options.clock.uptime_s() - self._runtime.knowledge.confirmed_s

    @property
    def version(self) -> int:
        """The feed's version that the view is at; 0 before the first answer."""
        cursor = self._runtime.knowledge.view.at
        return 0 if cursor is None else cursor.version

    @property
    def healthy(self) -> bool:
        """Whether the poller runs and the view is not stale.

        False, too, in a process whose server gives the poller no time: see docs/guards.md, "Servers".
        """
        runtime = self._runtime
        runtime.look_at_poller()
        is_polled = runtime.task.alive and not runtime.watch.is_stalled
        return is_polled and self.age <= self._options.stale_after_s

    @property
    def values(self) -> tuple[str, ...]:
        """The named values that this gate takes."""
        return self._options.values

    @property
    def off(self) -> Literal["", "process", "fleet"]:
        """The off switch that is in force: "process" for GATEKEEPER=off in this process's environment,
        "fleet" for `gatelock locks suspend`, "" while locks are enforced."""
        return self._runtime.switched_off_by()

    @property
    def behind(self) -> float:
        """Seconds that the analyzers were behind the log, by the last answer."""
        return self._runtime.knowledge.behind

    @property
    def clock_skew(self) -> float:
        """Seconds that this machine's clock is ahead of the source's. For information: locks end by this
        machine's clock."""
        return self._runtime.knowledge.clock_skew

    @property
    def ignored(self) -> Mapping[str, int]:
        """Words of the feed that this version does not know and does not enforce, such as "action warn", with
        the number of times each was seen."""
        return self._runtime.knowledge.view.ignored

    def measure(self) -> GateMeasurements:
        """Returns numbers about this gate in this process, for metrics.

        The first call begins to count; call it once at the start. `gatekeeper.telemetry.prometheus` exports
        them to Prometheus.
        """
        from gatekeeper.telemetry.gate_counts import GateMeasurements

        counts = self._runtime.counting()
        return GateMeasurements(
            name=self._options.name,
            checks=counts.checks(),
            failed_open=counts.failed_open(),
            polls=counts.polls,
            poll_failures=counts.poll_failures,
            poll_seconds=counts.poll_s,
            age=self.age,
            version=self.version,
            locks=len(self._runtime.knowledge.view),
            healthy=self.healthy,
            off=self.off,
            behind=self.behind,
        )

    # -- lifecycle -----------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts polling now rather than at the first check. Calling it again changes nothing.

        Before uWSGI forks its workers it does nothing: the first request of each worker starts it.

        Raises:
            RuntimeError: No thread could be started.
        """
        self._runtime.start()
        return self

    def ready(self, timeout: float) -> bool:
        """Starts polling and returns whether the source has answered, now or within `timeout` seconds.

        False, without a wait, before uWSGI forks its workers.
        """
        self.start()
        return self._runtime.wait_for_answer(timeout)

    def close(self) -> None:
        """Stops polling and releases what the source holds, within about two seconds.

        Checks continue with the last view, which becomes stale. `start` polls again.
        """
        self._runtime.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ValueGate(Gate):
    """A `Gate` with `values`: its methods take these as keywords. `Gate(..., values=[...])` makes one.

    Example:
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> gate = Gate(FixedSource(), values=["model"])
        >>> type(gate).__name__, gate.allow("api_key:acme", model="large")
        ('ValueGate', True)
    """

    def allow(self, caller: str, **values: str) -> bool:
        """Returns whether a request of `caller` may pass, as `Gate.allow` does.

        Args:
            caller: The typed name under which the log counts the caller.
            **values: The named values of the request.

        Raises:
            TypeError: The gate does not know one of these names.
        """
        if values:
            return self.check(caller, **values).allowed
        try:
            return caller not in self._locked_callers or self.check(caller).allowed
        except Exception:  # noqa: BLE001 - `caller` is not hashable, and so not a name
            return self._decide(NO_SCOPES).allowed

    def check(
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = "", **values: str
    ) -> Decision:
        """Returns the decision on a request, as `Gate.check` does.

        Args:
            caller: The typed name under which the log counts the caller.
            resource: The route pattern under which the log counts the resource.
            address: The IP address, in any spelling.
            tenant: The tenant.
            **values: The named values of the request. One that is "" or not a str is absent.

        Raises:
            TypeError: The gate does not know one of these names.
        """
        if values:
            self._require_known(values)
        path = self._path  # read once: the poller may replace it at any moment
        try:
            if (
                caller not in path.callers
                and (not address or address not in path.addresses)
                and (not address or path.ranges is None or not path.ranges.has_lock(address))
                and (not resource or path.routes is None or normalize_route(resource) not in path.routes)
                and (not tenant or tenant not in path.tenants)
                and (not values or path.values is None or not path.values.has_lock(caller, tenant, values))
            ):
                return ALLOWED
        except Exception:  # noqa: BLE001, S110 - an argument is not hashable; the others are looked up below
            pass
        scopes = request_scopes(caller, tenant, address, resource)
        return self._decide(scopes._replace(values=named_values(values)))

    def enforce(
        self, caller: str = "", *, resource: str = "", address: str = "", tenant: str = "", **values: str
    ) -> Decision:
        """Returns the decision of `check` when the request may pass. Never blocks.

        Args:
            caller: The typed name under which the log counts the caller.
            resource: The route pattern under which the log counts the resource.
            address: The IP address, in any spelling.
            tenant: The tenant.
            **values: The named values of the request.

        Raises:
            Refused: The request is denied; `Refused.decision` is the decision.
            TypeError: The gate does not know one of these names.
        """
        decision = self.check(caller, resource=resource, address=address, tenant=tenant, **values)
        if not decision.allowed:
            raise Refused(decision)
        return decision

    def _require_known(self, values: dict[str, Any]) -> None:
        for name in values:
            if name not in self._options.values:
                known = ", ".join(self._options.values)
                raise TypeError(f"{name}: not a named value of this gate, which has {known}")
