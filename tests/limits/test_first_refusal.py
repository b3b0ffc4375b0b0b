"""FirstRefusal: flags a key once, and decides as its limiter."""

from __future__ import annotations

import asyncio

import pytest

from gatekeeper.limits import AllOf, FirstRefusal, Key, SlidingLog, TokenBucket
from gatekeeper.model import Decision
from tests.limits.oracles import StepClock


def flagging() -> tuple[FirstRefusal[SlidingLog], StepClock, list[tuple[Key, Decision]]]:
    clock = StepClock()
    seen: list[tuple[Key, Decision]] = []
    log = SlidingLog(2, 10, name="search", clock=clock)
    limiter = FirstRefusal(log, lambda key, refusal: seen.append((key, refusal)), 100, clock=clock)
    return limiter, clock, seen


@pytest.mark.parametrize("call", ["allow", "check", "allow_async", "check_async", "wait", "reserve"])
def test_the_first_refusal_of_a_key_is_flagged_with_its_decision(call: str):
    limiter, clock, seen = flagging()
    more = {"timeout": 0} if call == "wait" else {"max_wait": 0} if call == "reserve" else {}

    def ask(key: str) -> bool:
        answer = getattr(limiter, call)(key, **more)
        return bool(asyncio.run(answer) if call.endswith("async") else answer)

    assert [ask("a") for _ in range(5)] == [True, True, False, False, False]
    assert [ask("b") for _ in range(3)] == [True, True, False]
    assert [key for key, _ in seen] == ["a", "b"]
    assert [(refusal.allowed, refusal.policy, refusal.retry_after) for _, refusal in seen] == [
        (False, "search", 10.0)
    ] * 2
    clock.advance(99)
    assert [ask("a") for _ in range(3)] == [True, True, False]
    assert len(seen) == 2, "it was flagged less than again_after seconds ago"
    clock.advance(1)
    assert not ask("a")
    assert [key for key, _ in seen] == ["a", "b", "a"]


def test_a_look_flags_nothing_and_a_reset_forgets_the_flag():
    limiter, _, seen = flagging()
    assert limiter.allow("a", 2)
    assert not limiter.peek("a")
    assert seen == []
    limiter.allow("a")
    limiter.reset("a")
    limiter.allow("a", 2)
    limiter.allow("a")
    assert [key for key, _ in seen] == ["a", "a"]


def test_a_flag_that_raises_is_logged_and_the_request_is_refused(caplog: pytest.LogCaptureFixture):
    def fail(key: Key, refusal: Decision) -> None:
        raise OSError("no queue")

    limiter = FirstRefusal(TokenBucket(1, 60), fail)
    assert [limiter.allow("a") for _ in range(3)] == [True, False, False]
    assert caplog.text.count("the flag of <FirstRefusal <TokenBucket") == 1


def test_flagged_keys_are_bounded():
    seen: list[Key] = []
    limiter = FirstRefusal(SlidingLog(1, 60), lambda key, _: seen.append(key), max_keys=2)
    for key in "abc":
        limiter.allow(key, 2)
    assert seen == ["a", "b"]


def test_a_composite_can_be_flagged_and_arguments_are_checked():
    seen: list[Key] = []
    limiter = FirstRefusal(AllOf(SlidingLog(1, 60), TokenBucket(5, 60)), lambda key, _: seen.append(key))
    assert [limiter.allow("a") for _ in range(2)] == [True, False]
    assert seen == ["a"]
    with pytest.raises(TypeError, match="flag: expected a function"):
        FirstRefusal(SlidingLog(1, 60), "flag")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match="limiter: expected a limiter"):
        FirstRefusal(SlidingLog, print)  # type: ignore[type-var]  # that is the test
