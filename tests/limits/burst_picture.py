"""The picture in docs/limiters.md: requests that each limiter admits of the same burst."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatekeeper.limits import (
    FixedWindow,
    LeakyQueue,
    Paced,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
)
from tests.limits.oracles import StepClock, worst_in_any

STEP_NS = 100_000_000
STEPS = 32
SECOND_NS = 1_000_000_000
LIMITERS: dict[str, Callable[[StepClock], Any]] = {
    "SlidingLog(10, 1)": lambda clock: SlidingLog(10, 1, clock=clock),
    "TokenBucket.strict(10, 1)": lambda clock: TokenBucket.strict(10, 1, clock=clock),
    "Paced(10, 1)": lambda clock: Paced(10, 1, clock=clock),
    "LeakyQueue(10, 1)": lambda clock: LeakyQueue(10, 1, clock=clock),
    "TokenBucket(10, 1, burst=3)": lambda clock: TokenBucket(10, 1, 3, clock=clock),
    "SlidingCounter(10, 1)": lambda clock: SlidingCounter(10, 1, clock=clock),
    "TokenBucket(10, 1)": lambda clock: TokenBucket(10, 1, clock=clock),
    "FixedWindow(10, 1)": lambda clock: FixedWindow(10, 1, clock=clock),
}


def requests_at(step: int) -> int:
    """One request at first, and six every tenth of a second from 0.7 s on."""
    return 1 if step == 0 else 6 if step >= 7 else 0


def picture() -> str:
    """One row a limiter, one column a tenth of a second, and the most that passed in any second."""
    rows = [_row("requests", [requests_at(step) for step in range(STEPS)], "")]
    for name, make in LIMITERS.items():
        clock = StepClock()
        limiter, passed, admitted = make(clock), [], []
        for step in range(STEPS):
            clock.now_ns = step * STEP_NS
            passed.append(sum(limiter.allow() for _ in range(requests_at(step))))
            admitted += [clock.now_ns] * passed[-1]
        rows.append(_row(name, passed, str(worst_in_any(admitted, SECOND_NS))))
    ruler = "".join(f"{second} s".ljust(10) for second in range(4))[:STEPS]
    return "\n".join([f"{'':<29}{ruler}  in the worst second", *rows])


def _row(name: str, counts: list[int], worst: str) -> str:
    return f"{name:<29}{''.join(str(count) if count else '.' for count in counts)}  {worst}".rstrip()


if __name__ == "__main__":
    print(picture())
