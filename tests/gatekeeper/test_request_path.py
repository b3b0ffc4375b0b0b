"""The request path: a look-up. It waits for no mutex, does no I/O, raises nothing and keeps nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from gatekeeper import ALLOWED, Decision, Gate, SlidingLog
from gatekeeper.model import GateStatus, Lock, Rate
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import HandFeed, a_lock

ACME = "api_key:acme"
LOCKS = [
    a_lock(ACME),
    a_lock("acme", "contract", scope="tenant"),
    a_lock("198.51.100.7", scope="address"),
    a_lock("203.0.113.0/24", scope="range"),
    a_lock("2001:db8::/32", scope="range"),
    a_lock("/v1/export", scope="resource"),
    a_lock("user:slow", action="slow", slow=Rate(1, 1000.0)),
    a_lock("user:tagged", action="tag"),
]

Check = Callable[[Gate], object]
CHECKS: dict[str, Check] = {
    "allow": lambda gate: gate.allow("user:zoe"),
    "check": lambda gate: gate.check(
        "user:zoe", resource="/v1/items/{id}", address="192.0.2.1", tenant="zoe"
    ),
    "check of IPv6": lambda gate: gate.check("user:zoe", address="2001:db9::1"),
    "a denied caller": lambda gate: gate.check(ACME, address="192.0.2.1"),
    "a slowed caller": lambda gate: gate.check("user:slow"),
    "a tagged caller": lambda gate: gate.check("user:tagged"),
    "a range": lambda gate: gate.check("user:zoe", address="203.0.113.9"),
}


def a_gate(*locks: Lock, **settings: Any) -> Gate:
    clock = settings.pop("clock", ManualClock())
    gate = Gate(settings.pop("source", None) or FixedSource(*locks), clock=clock, **settings)
    gate.ready(1.0)
    return gate


def stale_gate(**settings: Any) -> Gate:
    """A gate whose source was unavailable for longer than `stale_after`."""
    feed, clock = HandFeed(*LOCKS), ManualClock()
    gate = a_gate(source=feed, clock=clock, **settings)
    feed.away = True
    clock.advance(60.0)
    return gate


class ReportedFeed(HandFeed):
    """A feed that takes status reports."""

    wants_status = True

    def report_status(self, status: GateStatus) -> None: ...


def sampling_gate() -> Gate:
    """A gate that samples callers."""
    clock = ManualClock()
    gate = a_gate(source=ReportedFeed(*LOCKS), clock=clock)
    clock.advance(60.0)
    return gate


GATES: dict[str, Callable[[], Gate]] = {
    "fresh": lambda: a_gate(*LOCKS),
    "with a lock on everyone": lambda: a_gate(*LOCKS, a_lock("", "all", scope="everyone", action="tag")),
    "stale": stale_gate,
    "stale, denying": lambda: stale_gate(on_stale="deny"),
    "stale, limiting": lambda: stale_gate(on_stale=SlidingLog(10, 1.0, clock=ManualClock())),
    "closed": lambda: closed(a_gate(*LOCKS)),
    "sampling": sampling_gate,
    "in shadow": lambda: a_gate(*LOCKS, shadow=True),
}


def closed(gate: Gate) -> Gate:
    gate.close()
    return gate


# -- no mutex -------------------------------------------------------------------------------------


class Held:
    """A mutex that another thread holds forever; counts the attempts to wait for it."""

    waits = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        Held.waits += blocking
        return False

    def release(self) -> None:
        raise AssertionError("released, but never acquired")

    def locked(self) -> bool:
        return True

    def __enter__(self) -> None:
        Held.waits += 1
        raise AssertionError("waits for a mutex")

    def __exit__(self, *error: object) -> None: ...


# These ask a limiter, whose mutex is tried again and again but never waited for.
LIMITED = {"a slowed caller", "stale, limiting"}


@pytest.mark.parametrize("name", [name for name in GATES if name not in LIMITED])
def test_no_request_waits_for_a_mutex(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although another thread holds every mutex of the gate."""
    gate = GATES[name]()
    checks = [check for name, check in CHECKS.items() if name not in LIMITED]
    Held.waits = 0
    owners = [owner for owner in reachable(gate) if replace_mutexes(owner, monkeypatch)]
    assert {gate._runtime._switch, gate._runtime._callbacks} <= set(owners)
    for check in checks:
        check(gate)
    assert Held.waits == 0


def reachable(root: object) -> Iterator[object]:
    """Objects of this package that can be reached from `root`."""
    seen: set[int] = set()
    to_visit = [root]
    while to_visit:
        found = to_visit.pop()
        if id(found) in seen or isinstance(found, type | FrameType):
            continue
        seen.add(id(found))
        if type(found).__module__.startswith("gatekeeper"):
            yield found
            to_visit += [getattr(found, name, None) for name in dir(type(found)) if not name.startswith("__")]
            to_visit += getattr(found, "__dict__", {}).values()
        elif isinstance(found, dict | list | tuple):
            to_visit += found.values() if isinstance(found, dict) else found


def replace_mutexes(owner: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Replaces the mutexes of an object by held ones; returns whether it has any."""
    mutexes = type(threading.Lock()), type(threading.RLock())
    names = {*getattr(owner, "__dict__", ()), *getattr(type(owner), "__slots__", ())}
    replaced = [name for name in names if isinstance(getattr(owner, name, None), mutexes)]
    for name in replaced:
        monkeypatch.setattr(owner, name, Held())
    return bool(replaced)


# -- no unnecessary calls, no I/O -----------------------------------------------------------------


def called_by(check: Check, gate: Gate) -> set[str]:
    """The names of all functions that a check calls, C functions included."""
    names: set[str] = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            names.add(getattr(argument, "__qualname__", str(argument)))
        elif event == "call":
            names.add(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        check(gate)
    finally:
        sys.setprofile(before)
    return names - {"setprofile"}


def test_a_clear_request_calls_only_what_its_look_ups_need() -> None:
    """No clock, no mutex, no socket, no file, no logger."""
    gate = a_gate(*LOCKS)
    lambdas = {"<lambda>"}
    CHECKS["check"](gate)  # fills the cache of normalised routes
    assert called_by(CHECKS["allow"], gate) == lambdas | {"Gate.allow"}
    assert called_by(CHECKS["check"], gate) <= lambdas | {
        "Gate.check", "normalize_route", "len", "AddressRanges.has_lock", "has_prefix", "inet_pton",
        "int.from_bytes",
    }  # fmt: skip


AUDITED: list[str] = []
_listening = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _listening and threading.current_thread() is threading.main_thread():
        AUDITED.append(event)


@pytest.mark.parametrize("name", GATES)
def test_no_request_does_io(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter audits files, sockets, processes, threads and imports."""
    global _listening  # noqa: PLW0603 - an audit hook cannot be removed
    gate = GATES[name]()
    for check in CHECKS.values():
        check(gate)
    if _audit not in HOOKED:
        sys.addaudithook(_audit)
        HOOKED.append(_audit)
    AUDITED.clear()
    _listening = True
    try:
        open("/dev/null").close()  # noqa: PTH123 - shows that the hook works
        expected = list(AUDITED)
        AUDITED.clear()
        for check in CHECKS.values():
            check(gate)
    finally:
        _listening = False
    assert expected == ["open"]
    assert AUDITED == []


HOOKED: list[object] = []

FIRST_REFUSAL = """
import sys
from datetime import UTC, datetime, timedelta
from gatekeeper import Gate
from gatekeeper.model import Lock
from gatekeeper.sources.fixed import FixedSource

now = datetime.now(UTC)
gate = Gate(FixedSource(Lock("caller", "user:bob", "daily", now, now + timedelta(hours=1))))
assert gate.ready(30)
before = set(sys.modules)
assert not gate.allow("user:bob")
print(*sorted(sys.modules.keys() - before))
"""


def test_the_first_denial_imports_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", FIRST_REFUSAL], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


# -- nothing is raised ----------------------------------------------------------------------------


class Evil:
    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


HOSTILE = [
    None, b"api_key:acme", bytearray(b"x"), 7, -1, 1.5, float("nan"), True, [], {}, set(), [ACME], (ACME,),
    object(), Evil(), "\ud800", "\x00", "a\x00b", "\udcff:\udcff", "x" * 10_000_000, ":" * 1_000_000,
    "203.0.113." + "9" * 100_000, "{" * 100_000, "/{" * 50_000 + "}", "%", "::%" + "e" * 100_000, "::ffff:",
    "\u0663.\u0663.\u0663.\u0663", "١٢٧.0.0.1", type, Ellipsis, memoryview(b"x"),
]  # fmt: skip


@pytest.mark.parametrize("name", GATES)
def test_no_argument_makes_a_check_raise(name: str) -> None:
    gate = GATES[name]()
    for value in HOSTILE:
        assert isinstance(gate.allow(value), bool)
        for scope in ("caller", "tenant", "address", "resource"):
            assert isinstance(gate.check(**{scope: value}), Decision)


@pytest.mark.parametrize("locks", [0, 40_000])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:10])
def test_an_invalid_name_is_absent_and_the_other_scopes_are_looked_up(
    value: Any, locks: int, gates_by_size: dict[int, Gate]
) -> None:
    gate = gates_by_size[locks]
    assert gate.allow(value)
    for scope in ("tenant", "address", "resource"):
        assert gate.check(**{scope: value}) is ALLOWED
        assert gate.check(ACME, **{scope: value}).policy == "daily"
    assert gate.check(value, tenant="acme").policy == "contract"
    assert gate.check(value, address="203.0.113.1", resource=value, tenant=value).policy == "daily"


@pytest.fixture(scope="module")
def gates_by_size() -> dict[int, Gate]:
    """Gates with small tables, and with large ones."""
    return {
        locks: a_gate(*LOCKS, *(a_lock(f"user:{n}", scope=scope) for n in range(locks) for scope in LARGE))
        for locks in (0, 40_000)
    }


LARGE = ("caller", "tenant")


def test_a_limiter_that_raises_denies_no_request_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def check(self, key: str, /) -> Decision:
            raise ConnectionError("no Redis")

    gate = stale_gate(on_stale=Broken())
    assert [gate.allow("user:zoe") for _ in range(100)] == [True] * 100
    assert not gate.allow(ACME)
    assert len([record for record in caplog.records if "limiter" in record.message]) == 1


# -- nothing is kept ------------------------------------------------------------------------------

REPEATS = 5_000


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in LIMITED])
def test_a_check_keeps_no_memory(name: str) -> None:
    gate, check = a_gate(*LOCKS), CHECKS[name]
    gc.collect()
    gc.disable()
    try:
        # The first time the interpreter fills its free lists; another thread may allocate meanwhile.
        grown = min([blocks_kept(check, gate) for _ in range(4)][1:])
    finally:
        gc.enable()
    assert grown < REPEATS / 100


def blocks_kept(check: Check, gate: Gate) -> int:
    before = sys.getallocatedblocks()
    for _ in range(REPEATS):
        check(gate)
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize(("name", "at_most"), [("allow", 0), ("check", 200)])
def test_a_clear_request_allocates_almost_nothing(name: str, at_most: int) -> None:
    """The decision is a shared constant. An address becomes a number of some 30 bytes for a moment."""
    gate, check = a_gate(*LOCKS), CHECKS[name]
    check(gate)
    tracemalloc.start()
    try:
        least = [min(peak_of(called, gate) for _ in range(20)) for called in (check, type)]
    finally:
        tracemalloc.stop()
    assert least[0] - least[1] <= at_most  # without the cost of the measurement


def peak_of(check: Check, gate: Gate) -> int:
    """The most bytes that a check has allocated at one moment."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    check(gate)
    return tracemalloc.get_traced_memory()[1] - before


# -- how long it takes ----------------------------------------------------------------------------


class OneLookUp:
    """A class with one method and one look-up, to compare with."""

    def __init__(self) -> None:
        self._locks: dict[str, bool] = {}

    def allow(self, caller: str) -> bool:
        return caller not in self._locks


def test_a_clear_allow_costs_at_most_two_methods_with_one_look_up() -> None:
    """In CPU time of this thread, the least of many short rounds in turn, because other processes disturb a
    measurement. `make bench ARGS=allow` measures more."""
    gate = a_gate(*LOCKS)
    methods = gate.allow, OneLookUp().allow
    best = dict.fromkeys(methods, 1e9)
    for _ in range(60):
        for method in methods:
            took_s = timeit.timeit(
                "allow('user:zoe')", globals={"allow": method}, number=5_000, timer=time.thread_time
            )
            best[method] = min(best[method], took_s)
    assert best[methods[0]] <= 2 * best[methods[1]]
