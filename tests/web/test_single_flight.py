"""Single-flight calls from an event loop: one call of a blocking function, shared by all callers."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading

import pytest
from starlette.requests import Request

from analyzer.faces.authentication import Authenticator
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tokens import TokenList
from analyzer.server import single_flight
from analyzer.server.problems import HttpProblem
from analyzer.server.single_flight import SingleFlight

PATIENCE_S = 20.0


class BlockingCall:
    """A function that blocks until it is released, and counts how often it is called."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.began, self.released = threading.Event(), threading.Event()
        self._error = error

    def __call__(self) -> int:
        self.calls += 1
        self.began.set()
        assert self.released.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error
        return self.calls


async def together(call: BlockingCall, callers: int) -> list[int | BaseException]:
    flight = SingleFlight(call)
    results = asyncio.gather(*(flight.get() for _ in range(callers)), return_exceptions=True)
    await asyncio.to_thread(call.began.wait, PATIENCE_S)
    call.released.set()
    return await results


def test_callers_at_the_same_time_share_one_call() -> None:
    call = BlockingCall()
    assert asyncio.run(together(call, 30)) == [1] * 30
    assert call.calls == 1


def test_callers_at_the_same_time_share_its_error() -> None:
    error = StoreAway("it is away")
    assert asyncio.run(together(BlockingCall(error), 30)) == [error] * 30


def test_a_caller_after_the_end_of_a_call_begins_another_one() -> None:
    call = BlockingCall()
    call.released.set()

    async def story() -> list[int]:
        flight = SingleFlight(call)
        return [await flight.get(), await flight.get()]

    assert asyncio.run(story()) == [1, 2]


def test_a_result_is_kept_for_a_time_and_an_error_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(single_flight.time, "monotonic", lambda: now_s)
    answers: list[int | Exception] = [1, 2, StoreAway("away"), 4]

    def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def story() -> None:
        nonlocal now_s
        flight = SingleFlight(call, kept_s=60)
        assert [await flight.get(), await flight.get()] == [1, 1]
        now_s = 61
        assert await flight.get() == 2
        now_s = 122
        with pytest.raises(StoreAway):
            await flight.get()
        assert await flight.get() == 4

    asyncio.run(story())


def test_a_call_that_takes_too_long_is_a_time_out_and_still_the_only_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(single_flight, "TIMEOUT_S", 0.05)
    call = BlockingCall(StoreAway("it comes too late"))

    async def story() -> None:
        flight = SingleFlight(call)
        for _ in range(3):
            with pytest.raises(TimeoutError, match=r"the database has not answered for 0\.05 s"):
                await flight.get()
        monkeypatch.setattr(single_flight, "TIMEOUT_S", PATIENCE_S)
        call.released.set()
        with pytest.raises(StoreAway):
            await flight.get()

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(story())
        gc.collect()
    assert call.calls == 1
    assert caplog.records == [], "asyncio logs errors that no caller has taken"


def test_requests_at_the_same_time_share_one_attempt_to_read_the_tokens() -> None:
    attempts = BlockingCall(StoreAway("it is away"))

    def load_tokens() -> TokenList:
        attempts()
        raise AssertionError

    async def story() -> list[HttpProblem | None]:
        authenticator = Authenticator(load_tokens, lambda: 1_000.0)
        request = Request({"type": "http", "headers": []})
        results = asyncio.gather(
            *(authenticator.require("read", request) for _ in range(30)), return_exceptions=True
        )
        await asyncio.to_thread(attempts.began.wait, PATIENCE_S)
        attempts.released.set()
        return await results

    assert {getattr(problem, "status", None) for problem in asyncio.run(story())} == {503}
    assert attempts.calls == 1
