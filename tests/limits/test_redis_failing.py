"""A Redis that is killed, paused, restarted or full: decisions meanwhile, and how soon they are made."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis
import redis.asyncio

from gatekeeper.limits import AllOf, Concurrency, FixedWindow, LeakyQueue, SlidingLog, TokenBucket
from gatekeeper.limits.redis import RedisStore
from tests.limits.redis_kinds import KINDS
from tests.support.servers.redis import NativeRedis, client_of

TIMEOUT_S = 1.0  # a busy machine may keep a good Redis from answering for a part of it


def store_of(server: NativeRedis, on_error: str = "allow", **options: object) -> RedisStore:
    """Returns a store of a plain client, whose own time-outs and retries would take many seconds."""
    client = redis.Redis.from_url(server.url)
    return RedisStore(client, on_error=on_error, timeout=TIMEOUT_S, **options)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_only_the_first_call_waits_for_a_dead_redis(own_redis: NativeRedis, how: str):
    store = store_of(own_redis, pause=30)
    limiter = SlidingLog(2, 60, store=store)
    assert limiter.allow("a")
    getattr(own_redis, how)()
    began_s = time.monotonic()
    assert limiter.allow("a")
    assert time.monotonic() - began_s < 10 * TIMEOUT_S
    assert store.failing
    began_s = time.monotonic()
    assert all(limiter.allow("a") for _ in range(1000)), "there are two permits, and they are not counted"
    assert limiter.check_many(["a", "b"])[1]
    assert time.monotonic() - began_s < 10 * TIMEOUT_S
    store.close()


def test_deny_refuses_with_reason_and_duration(own_redis: NativeRedis):
    store = store_of(own_redis, "deny", pause=30)
    limiter, at_once = FixedWindow(9, 60, store=store, name="uploads"), Concurrency(2, store=store)
    both = AllOf(limiter, TokenBucket(5, 60, store=store))
    own_redis.kill()
    refusals = [refusing.check("a") for refusing in (limiter, both, at_once)]
    for refused in (*refusals, limiter.wait("a", timeout=60)):
        assert (refused.allowed, refused.reason, refused.status) == (
            False,
            "temporary-reduced-capacity",
            503,
        )
        assert 25 < refused.retry_after <= 30
    assert limiter.check("a").policy == "uploads"
    assert not limiter.reserve("a")
    store.close()


def test_local_shares_add_up_to_the_limit(own_redis: NativeRedis):
    nodes = 8
    stores = [store_of(own_redis, "local", nodes=nodes, node=node, pause=30) for node in range(nodes)]
    own_redis.kill()
    for kind in KINDS:
        limiters = [kind.make(20, 3600, store=store) for store in stores]
        passed = [sum(limiter.allow("a") for _ in range(30)) for limiter in limiters]
        most = {"TokenBucket, burst 2": nodes, "LeakyQueue": nodes}.get(kind.name, 20)
        assert sum(passed) == most or (kind.name == "TokenBucket.strict" and sum(passed) <= 20)
        assert all(passed), "every node has a share of its limit"
    at_once = [Concurrency(3, store=store) for store in stores]
    assert sum(limiter.allow("a") for limiter in at_once for _ in range(3)) == 3
    at_once[0].release("a")
    assert at_once[0].allow("a")
    for limiter in at_once:
        limiter.reset("a")
        limiter.configure(limit=11)
    assert [sum(limiter.allow("a") for _ in range(11)) for limiter in at_once] == [2, 2, 2, 1, 1, 1, 1, 1]
    few = [SlidingLog(2, 3600, store=store) for store in stores]
    assert sum(limiter.allow("a") for limiter in few) == nodes, "2 an hour are 8 in four hours"
    for store in stores:
        store.close()


def test_local_limiters_book_wait_and_give_back(own_redis: NativeRedis):
    store = store_of(own_redis, "local", nodes=2, pause=30)
    log = SlidingLog(2, 0.2, store=store)
    own_redis.kill()
    assert log.wait("a")
    began_s = time.monotonic()
    assert log.wait("a", timeout=5)
    assert time.monotonic() - began_s > 0.1
    booked = log.reserve("a")
    assert booked.delay > 0
    assert booked.cancel()
    log.reset("a")
    assert log.peek("a").remaining == 1
    assert log.allow("a")
    log.refund("a")
    assert log.peek("a").remaining == 1
    assert LeakyQueue(2, 0.2, store=store).wait("a")
    store.close()


def test_a_limit_that_changes_meanwhile_changes_for_the_local_share_and_keeps_its_history(
    own_redis: NativeRedis,
):
    store = store_of(own_redis, "local", nodes=2, pause=30)
    log, bucket = SlidingLog(4, 3600, store=store), TokenBucket(20, 3600, 4, store=store, name="n")
    both = AllOf(log, bucket)
    own_redis.kill()
    assert [both.check("a").remaining for _ in range(2)] == [1, 0]
    log.configure(limit=10)
    bucket.configure(burst=8)
    assert (log.peek("a").limit, log.peek("a").remaining) == (5, 3)
    assert (both.peek("a").limit, both.peek("a").remaining) == (4, 2)
    assert log.overflowed == 0
    store.close()


def test_a_restarted_redis_is_used_again_and_receives_the_scripts(own_redis: NativeRedis, caplog):
    store = store_of(own_redis, pause=0.1, remember=0)
    log, at_once = SlidingLog(1, 60, store=store), Concurrency(1, store=store)
    assert log.allow("a")
    assert not log.allow("a")
    own_redis.kill()
    assert log.allow("a")
    assert store.failing
    own_redis.start()
    time.sleep(0.15)
    assert log.allow("a"), "it stores nothing on disk, so this is the first request"
    assert not log.allow("a")
    assert not store.failing
    with client_of(own_redis.url) as client:
        client.script_flush()
    assert not log.check_many(["b", "b"])[1]
    assert at_once.allow("a")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    store.close()


def test_after_the_pause_one_caller_tries(own_redis: NativeRedis):
    store = store_of(own_redis, pause=0.3)
    log = SlidingLog(1, 60, store=store)
    own_redis.pause()
    log.allow("a")
    time.sleep(0.35)
    began_s = time.monotonic()
    for _ in range(20):
        log.allow("a")
    assert time.monotonic() - began_s < 10 * TIMEOUT_S, "not 20 time-outs"
    own_redis.resume()
    time.sleep(0.35)
    log.peek("a")
    assert not store.failing
    store.close()


def test_a_full_redis_counts_as_failing(own_redis: NativeRedis):
    store = store_of(own_redis)
    log = SlidingLog(1, 60, store=store)
    with client_of(own_redis.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        assert [log.allow("a") for _ in range(3)] == [True] * 3
        assert store.failing
        client.config_set("maxmemory", 0)
    store.close()


def test_an_error_in_a_script_is_raised(own_redis: NativeRedis):
    store = store_of(own_redis)
    log = SlidingLog(1, 60, store=store, name="n")
    with client_of(own_redis.url) as client:
        client.set("gatelock:SlidingLog:n:{=a}", "of another program")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        log.allow("a")
    assert not store.failing
    store.close()


def test_tasks_do_not_wait_for_a_dead_redis(own_redis: NativeRedis):
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(own_redis.url)
        store = RedisStore(client, on_error="deny", timeout=TIMEOUT_S, pause=30)
        log = SlidingLog(5, 60, store=store)
        assert await log.allow_async("a")
        own_redis.pause()
        began_s = time.monotonic()
        decisions = await asyncio.gather(*(log.check_async("a") for _ in range(20)))
        assert time.monotonic() - began_s < 10 * TIMEOUT_S, "they wait concurrently, and once"
        assert {decision.status for decision in decisions} == {503}
        assert not await log.allow_async("a")
        await store.aclose()
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "shrug"}, "on_error: expected"),
        ({"on_error": "local"}, "nodes, node: expected"),
        ({"on_error": "local", "nodes": 2, "node": 2}, "nodes, node: expected"),
        ({"timeout": 0}, "timeout, pause, remember: expected"),
        ({"remember": -1}, "timeout, pause, remember: expected"),
        ({"prefix": "a{b}"}, "prefix: expected"),
        ({"prefix": ""}, "prefix: expected"),
    ],
)
def test_invalid_options_raise_when_the_store_is_created(options, message):
    with pytest.raises(ValueError, match=message):
        RedisStore(redis.Redis(), **options)
