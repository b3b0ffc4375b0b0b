"""What a request pays: a look-up. No mutex is waited for, nothing is read or written, nothing is raised, and
nothing is kept."""

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

Ask = Callable[[Gate], object]
PATHS: dict[str, Ask] = {
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
    """Its source has been away for longer than `stale_after`."""
    feed, clock = HandFeed(*LOCKS), ManualClock()
    gate = a_gate(source=feed, clock=clock, **settings)
    feed.away = True
    clock.advance(60.0)
    return gate


class Hears(HandFeed):
    """A feed that wants to know whom the gate was asked for."""

    wants_status = True

    def report_status(self, status: GateStatus) -> None: ...


def telling_gate() -> Gate:
    """One that is about to note who asks."""
    clock = ManualClock()
    gate = a_gate(source=Hears(*LOCKS), clock=clock)
    clock.advance(60.0)
    return gate


GATES: dict[str, Callable[[], Gate]] = {
    "fresh": lambda: a_gate(*LOCKS),
    "with a lock on everyone": lambda: a_gate(*LOCKS, a_lock("", "all", scope="everyone", action="tag")),
    "stale": stale_gate,
    "stale, denying": lambda: stale_gate(on_stale="deny"),
    "stale, limiting": lambda: stale_gate(on_stale=SlidingLog(10, 1.0, clock=ManualClock())),
    "closed": lambda: closed(a_gate(*LOCKS)),
    "telling": telling_gate,
    "in shadow": lambda: a_gate(*LOCKS, shadow=True),
}


def closed(gate: Gate) -> Gate:
    gate.close()
    return gate


# -- no mutex -------------------------------------------------------------------------------------


class Held:
    """A mutex that somebody holds for ever; to wait for it is to be found out."""

    waited_for = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        Held.waited_for += blocking
        return False

    def release(self) -> None:
        raise AssertionError("released what was never taken")

    def locked(self) -> bool:
        return True

    def __enter__(self) -> None:
        Held.waited_for += 1
        raise AssertionError("waits for a mutex")

    def __exit__(self, *error: object) -> None: ...


COUNTS = {"a slowed caller", "stale, limiting"}  # exact, so by a limiter: its mutex is tried, never slept on


@pytest.mark.parametrize("gate", [name for name in GATES if name not in COUNTS])
def test_no_request_waits_for_a_mutex(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds them all and will not let go."""
    asked = GATES[gate]()
    paths = [path for name, path in PATHS.items() if name not in COUNTS]
    Held.waited_for = 0
    found = [owner for owner in reachable(asked) if replaces_mutexes(owner, monkeypatch)]
    assert asked in found
    for path in paths:
        path(asked)
    assert Held.waited_for == 0


def reachable(root: object) -> Iterator[object]:
    """Objects of this package that `root` leads to."""
    seen: set[int] = set()
    left = [root]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | FrameType):
            continue
        seen.add(id(one))
        if type(one).__module__.startswith("gatekeeper"):
            yield one
            left += [getattr(one, name, None) for name in dir(type(one)) if not name.startswith("__")]
            left += getattr(one, "__dict__", {}).values()
        elif isinstance(one, dict | list | tuple):
            left += one.values() if isinstance(one, dict) else one


def replaces_mutexes(owner: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    mutexes = type(threading.Lock()), type(threading.RLock())
    names = {*getattr(owner, "__dict__", ()), *getattr(type(owner), "__slots__", ())}
    held = [name for name in names if isinstance(getattr(owner, name, None), mutexes)]
    for name in held:
        monkeypatch.setattr(owner, name, Held())
    return bool(held)


# -- nothing is called that is not needed ---------------------------------------------------------


def called_by(ask: Ask, gate: Gate) -> set[str]:
    """The names of all functions that are called, those written in C included."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call":
            names.add(getattr(what, "__qualname__", str(what)))
        elif event == "call":
            names.add(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        ask(gate)
    finally:
        sys.setprofile(before)
    return names - {"setprofile"}


def test_a_clear_request_calls_what_it_takes_to_look_and_nothing_else() -> None:
    """No clock, no mutex, no socket, no file, no logger: none of them is on this list."""
    gate = a_gate(*LOCKS)
    lambdas = {"<lambda>"}
    PATHS["check"](gate)  # a route's spelling is worked out once
    assert called_by(PATHS["allow"], gate) == lambdas | {"Gate.allow"}
    assert called_by(PATHS["check"], gate) <= lambdas | {
        "Gate.check", "normalize_route", "len", "AddressRanges.meet", "has_prefix", "inet_pton",
        "int.from_bytes",
    }  # fmt: skip


AUDITED: list[str] = []
_listening = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _listening and threading.current_thread() is threading.main_thread():
        AUDITED.append(event)


@pytest.mark.parametrize("gate", GATES)
def test_no_request_reads_or_writes_anything(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, sockets, processes, threads, imports: the interpreter audits them all."""
    global _listening  # noqa: PLW0603 - an audit hook stays till the end of the process
    asked = GATES[gate]()
    for path in PATHS.values():
        path(asked)
    if _audit not in HOOKED:
        sys.addaudithook(_audit)
        HOOKED.append(_audit)
    AUDITED.clear()
    _listening = True
    try:
        open("/dev/null").close()  # noqa: PTH123 - that the hook hears anything
        heard = list(AUDITED)
        AUDITED.clear()
        for path in PATHS.values():
            path(asked)
    finally:
        _listening = False
    assert heard == ["open"]
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


def test_not_even_the_first_refusal_imports_anything() -> None:
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


@pytest.mark.parametrize("gate", GATES)
def test_nothing_that_is_asked_for_makes_it_raise(gate: str) -> None:
    asked = GATES[gate]()
    for some in HOSTILE:
        assert isinstance(asked.allow(some), bool)
        for name in ("caller", "tenant", "address", "resource"):
            assert isinstance(asked.check(**{name: some}), Decision)


@pytest.mark.parametrize("many", [0, 40_000])
@pytest.mark.parametrize("some", HOSTILE, ids=lambda some: repr(some)[:10])
def test_what_is_no_name_says_nothing_and_hides_nothing(
    some: Any, many: int, crowded: dict[int, Gate]
) -> None:
    """The other things that the request says are asked for all the same."""
    gate = crowded[many]
    assert gate.allow(some)
    for name in ("tenant", "address", "resource"):
        assert gate.check(**{name: some}) is ALLOWED
        assert gate.check(ACME, **{name: some}).policy == "daily"
    assert gate.check(some, tenant="acme").policy == "contract"
    assert gate.check(some, address="203.0.113.1", resource=some, tenant=some).policy == "daily"


@pytest.fixture(scope="module")
def crowded() -> dict[int, Gate]:
    """Gates whose tables are small, and large."""
    return {
        many: a_gate(*LOCKS, *(a_lock(f"user:{n}", scope=scope) for n in range(many) for scope in SPREAD))
        for many in (0, 40_000)
    }


SPREAD = ("caller", "tenant")


def test_a_limiter_that_raises_refuses_nobody_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def check(self, key: str, /) -> Decision:
            raise ConnectionError("no Redis")

    gate = stale_gate(on_stale=Broken())
    assert [gate.allow("user:zoe") for _ in range(100)] == [True] * 100
    assert not gate.allow(ACME)
    assert len([record for record in caplog.records if "limiter" in record.message]) == 1


# -- nothing is kept ------------------------------------------------------------------------------

ASKS = 5_000


@pytest.mark.parametrize("path", [name for name in PATHS if name not in COUNTS])
def test_a_question_leaves_nothing_behind(path: str) -> None:
    gate, ask = a_gate(*LOCKS), PATHS[path]
    gc.collect()
    gc.disable()
    try:
        grown = [blocks_kept(ask, gate) for _ in range(2)][-1]  # at first the interpreter fills its own lists
    finally:
        gc.enable()
    assert grown < ASKS / 100


def blocks_kept(ask: Ask, gate: Gate) -> int:
    before = sys.getallocatedblocks()
    for _ in range(ASKS):
        ask(gate)
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize(("path", "at_most"), [("allow", 0), ("check", 200)])
def test_a_clear_request_allocates_no_more_than_its_answer(path: str, at_most: int) -> None:
    """The answer is always the same one. An address is a number for a moment: some 30 bytes for each step."""
    gate, ask = a_gate(*LOCKS), PATHS[path]
    ask(gate)
    tracemalloc.start()
    try:
        least = [min(peak_of(each, gate) for _ in range(20)) for each in (ask, type)]
    finally:
        tracemalloc.stop()
    assert least[0] - least[1] <= at_most  # beyond what it takes to measure nothing


def peak_of(ask: Ask, gate: Gate) -> int:
    """Bytes that were allocated at one moment of a question, and were not before."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    ask(gate)
    return tracemalloc.get_traced_memory()[1] - before


# -- how long it takes ----------------------------------------------------------------------------


class OneLookUp:
    def __init__(self) -> None:
        self._locks: dict[str, bool] = {}

    def allow(self, caller: str) -> bool:
        return caller not in self._locks


def test_a_clear_allow_costs_at_most_two_methods_with_one_look_up() -> None:
    """By this thread's own time, the best of many short rounds in turn: other work on the machine is not
    counted. `make bench ARGS=allow` shows the rest."""
    gate = a_gate(*LOCKS)
    methods = gate.allow, OneLookUp().allow
    best = dict.fromkeys(methods, 1e9)
    for _ in range(60):
        for method in methods:
            took_s = timeit.timeit(
                "ask('user:zoe')", globals={"ask": method}, number=5_000, timer=time.thread_time
            )
            best[method] = min(best[method], took_s)
    assert best[methods[0]] <= 2 * best[methods[1]]
