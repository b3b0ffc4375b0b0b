"""A Redis that is killed, paused, restarted or full: what is answered meanwhile, and how soon."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis
import redis.asyncio

from gatekeeper.limits import AllOf, Concurrency, FixedWindow, LeakyQueue, SlidingLog, TokenBucket
from gatekeeper.limits.redis import RedisStore
from tests.limits.stores import KINDS
from tests.support.servers.redis import NativeRedis, client_of

TIMEOUT_S = 0.1


def store_of(server: NativeRedis, on_error: str = "allow", **options: object) -> RedisStore:
    """With a plain client: its own time-outs and retries would take many seconds."""
    client = redis.Redis.from_url(server.url)
    return RedisStore(client, on_error=on_error, timeout=TIMEOUT_S, **options)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_nobody_waits_for_a_dead_redis_but_the_one_who_finds_out(own_redis: NativeRedis, how: str):
    store = store_of(own_redis, pause=30)
    limiter = SlidingLog(2, 60, store=store)
    assert limiter.allow("a")
    getattr(own_redis, how)()
    began_s = time.monotonic()
    assert limiter.allow("a")
    assert time.monotonic() - began_s < 2 * TIMEOUT_S + 0.5
    assert store.failing
    began_s = time.monotonic()
    assert all(limiter.allow("a") for _ in range(1000)), "there are two permits, and nobody counts"
    assert limiter.check_many(["a", "b"])[1]
    assert time.monotonic() - began_s < 0.5
    store.close()


def test_deny_says_why_and_for_how_long(own_redis: NativeRedis):
    store = store_of(own_redis, "deny", pause=30)
    limiter, at_once = FixedWindow(9, 60, store=store, name="uploads"), Concurrency(2, store=store)
    both = AllOf(limiter, TokenBucket(5, 60, store=store))
    own_redis.kill()
    answers = [each.check("a") for each in (limiter, both, at_once)]
    for refused in (*answers, limiter.wait("a", timeout=60)):
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
        assert all(passed), "every node has a share"
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


def test_local_books_waits_and_gives_back(own_redis: NativeRedis):
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


def test_a_restarted_redis_is_found_again_and_taught_the_scripts(own_redis: NativeRedis, caplog):
    store = store_of(own_redis, pause=0.1, remember=0)
    log, at_once = SlidingLog(1, 60, store=store), Concurrency(1, store=store)
    assert log.allow("a")
    assert not log.allow("a")
    own_redis.kill()
    assert log.allow("a")
    assert store.failing
    own_redis.start()
    time.sleep(0.15)
    assert log.allow("a"), "it keeps nothing on disk, so this is its first"
    assert not log.allow("a")
    assert not store.failing
    with client_of(own_redis.url) as client:
        client.script_flush()
    assert not log.check_many(["b", "b"])[1]
    assert at_once.allow("a")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    store.close()


def test_after_the_pause_one_caller_tries_for_all(own_redis: NativeRedis):
    store = store_of(own_redis, pause=0.3)
    log = SlidingLog(1, 60, store=store)
    own_redis.pause()
    log.allow("a")
    time.sleep(0.35)
    began_s = time.monotonic()
    for _ in range(20):
        log.allow("a")
    assert time.monotonic() - began_s < 4 * TIMEOUT_S, "not 20 time-outs"
    own_redis.resume()
    time.sleep(0.35)
    log.peek("a")
    assert not store.failing
    store.close()


def test_a_full_redis_is_one_that_does_not_answer(own_redis: NativeRedis):
    store = store_of(own_redis)
    log = SlidingLog(1, 60, store=store)
    with client_of(own_redis.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        assert [log.allow("a") for _ in range(3)] == [True] * 3
        assert store.failing
        client.config_set("maxmemory", 0)
    store.close()


def test_a_bug_is_not_taken_for_a_dead_redis(own_redis: NativeRedis):
    store = store_of(own_redis)
    log = SlidingLog(1, 60, store=store, name="n")
    with client_of(own_redis.url) as client:
        client.set("gatelock:SlidingLog:n:{=a}", "somebody else's")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        log.allow("a")
    assert not store.failing
    store.close()


def test_a_task_does_not_wait_either(own_redis: NativeRedis):
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(own_redis.url)
        store = RedisStore(client, on_error="deny", timeout=TIMEOUT_S, pause=30)
        log = SlidingLog(5, 60, store=store)
        assert await log.allow_async("a")
        own_redis.pause()
        began_s = time.monotonic()
        answers = await asyncio.gather(*(log.check_async("a") for _ in range(20)))
        assert time.monotonic() - began_s < TIMEOUT_S + 0.5, "they wait side by side, and once"
        assert {answer.status for answer in answers} == {503}
        assert not await log.allow_async("a")
        await store.aclose()
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"on_error": "shrug"}, "on_error: expected"),
        ({"on_error": "local"}, "nodes: expected"),
        ({"on_error": "local", "nodes": 2, "node": 2}, "nodes: expected"),
        ({"timeout": 0}, "timeout: expected"),
        ({"remember": -1}, "timeout: expected"),
        ({"prefix": "a{b}"}, "prefix: expected"),
        ({"prefix": ""}, "prefix: expected"),
    ],
)
def test_what_cannot_be_is_said_when_the_store_is_made(options, why):
    with pytest.raises(ValueError, match=why):
        RedisStore(redis.Redis(), **options)
