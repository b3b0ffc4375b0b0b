"""Limiters in a real Redis: their round trips, what they leave behind, waiting, both kinds of client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from gatekeeper.limits import (
    AllOf,
    Concurrency,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
    parse,
)
from gatekeeper.limits.redis import RedisStore
from gatekeeper.model import Refused
from tests.limits.stores import KINDS, Kind, new_name
from tests.limits.turns import Turns
from tests.support.servers.redis import NativeRedis, Redis, client_of

every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)


@pytest.fixture
def client(redis_server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def store(client: redis.Redis) -> Iterator[RedisStore]:
    store = RedisStore(client, prefix=f"tests:{new_name()}", timeout=5)
    yield store
    store.close()


@pytest.fixture
def turns(redis_server: Redis) -> Iterator[Turns]:
    turns = Turns(redis.connection.parse_url(redis_server.url)["port"])
    yield turns
    turns.close()


class TestRoundTrips:
    @pytest.fixture
    def store(self, turns: Turns) -> Iterator[RedisStore]:
        store = RedisStore(redis.Redis(port=turns.port), timeout=5, prefix=f"tests:{new_name()}")
        FixedWindow(1, 1, store=store).allow("connects")
        yield store
        store.close()

    @every_kind
    def test_a_decision_is_one_and_a_hundred_are_one(self, store, turns, kind: Kind):
        limiter = kind.make(1000, 60, store=store)
        limiter.allow("loads the script")
        before = turns.count
        limiter.check("a")
        assert turns.count - before == 1
        limiter.check_many([f"key {n}" for n in range(100)])
        assert turns.count - before == 2

    def test_several_limits_at_once_are_one(self, store, turns):
        both = parse("10/second; 1000/hour", store=store)
        both.allow("loads the script")
        before = turns.count
        both.check("a")
        assert turns.count - before == 1

    def test_a_permit_of_concurrency_is_one_and_giving_it_back_another(self, store, turns):
        limiter = Concurrency(5, store=store)
        limiter.peek("loads the script")
        before = turns.count
        with limiter.guard("a"):
            assert turns.count - before == 1
        assert turns.count - before == 2

    @every_kind
    def test_who_is_known_to_be_refused_costs_none(self, store, turns, kind: Kind):
        limiter = kind.make(2, 60, store=store)
        while limiter.check("a"):
            pass
        before = turns.count
        assert not any(limiter.allow("a") for _ in range(50))
        assert not limiter.check_many(["a", "a"])[1]
        first, second = limiter.check("a"), limiter.check("a")
        assert turns.count == before
        assert 0 < second.retry_after < first.retry_after < 60
        assert limiter.peek("a").retry_after < second.retry_after, "memory is not sooner than the truth"

    def test_a_refund_a_reset_and_another_limit_are_seen_at_once_in_the_same_process(self, store):
        log = SlidingLog(1, 60, store=store)
        both = AllOf(log, TokenBucket(9, 60, store=store))
        for give_back in (log.refund, log.reset, both.reset):
            assert both.allow("a")
            assert not both.allow("a")
            assert not log.allow("a")
            give_back("a")
            assert log.peek("a").remaining == 1
        assert log.allow("a")
        assert not both.allow("a")
        log.configure(limit=2)
        assert both.allow("a")

    def test_those_of_another_process_are_seen_in_time_or_by_looking(self, store, turns):
        here = SlidingLog(1, 60, store=store, name="n")
        other = RedisStore(redis.Redis(port=turns.port), prefix=store.prefix, remember=0.5)
        there = SlidingLog(1, 60, store=other, name="n")
        assert here.allow("a")
        assert not here.allow("a")
        assert not there.allow("a")
        there.reset("a")
        assert not here.allow("a"), "believed until its end"
        assert here.peek("a")
        assert here.allow("a")
        assert not there.allow("a")
        here.reset("a")
        assert not there.allow("a")
        time.sleep(0.55)
        assert there.allow("a"), "believed for as long as `remember` says"
        other.close()


class TestWhatStaysInRedis:
    @every_kind
    def test_a_key_lives_until_it_equals_a_new_one_and_no_longer(self, store, client, kind: Kind):
        limiter = kind.make(3, 60, store=store)
        for _ in range(3):
            limiter.allow("a")
            (key,) = client.keys(f"{store.prefix}:*")
            lives_s = client.pttl(key) / 1000  # asked first: what is left of the other is less then
            reset_after = limiter.peek("a").reset_after
            assert reset_after <= lives_s <= (121 if kind.name == "SlidingCounter" else reset_after + 0.2)

    @every_kind
    def test_a_booking_keeps_its_key(self, store, client, kind: Kind):
        limiter = kind.make(1, 1, store=store)
        last = [limiter.reserve("a") for _ in range(5)][-1]
        (key,) = client.keys(f"{store.prefix}:*")
        assert client.pttl(key) / 1000 >= last.delay + 0.5

    def test_nothing_is_left_when_the_time_is_over(self, store, client):
        for kind in KINDS:
            kind.make(3, 0.05, store=store).check_many(["a", "b"])
        Concurrency(3, store=store, lease=0.05).allow("a")
        time.sleep(0.25)
        assert client.keys(f"{store.prefix}:*") == []

    def test_looking_refunding_and_being_refused_write_nothing(self, store, client):
        for kind in KINDS:
            limiter = kind.make(3, 60, store=store)
            limiter.peek("a")
            limiter.refund("a", 2)
            limiter.check("a", 0)
            limiter.check("a", 9)
        assert client.keys(f"{store.prefix}:*") == []

    def test_keys_of_all_kinds_stay_apart(self, store):
        log = SlidingLog(1, 60, store=store)
        keys = ["", "a", "=a", "a}", "{a", '["a",1]', ("a", 1), ("a", "1"), ("a",), "\ud800", "a b\n"]
        assert all(decision.allowed for decision in log.check_many(keys))
        named = [SlidingLog(1, 60, store=store, name=name) for name in ("x", "x:y", "{x}", "x}", "%7B")]
        assert all(limiter.allow(key) for limiter in named for key in ("a", "y:a", ":{=a"))

    def test_without_a_name_equal_numbers_are_one_limit_and_others_another(self, store):
        assert TokenBucket(1, 60, store=store).allow("a")
        assert not TokenBucket(1, 60, store=store).allow("a")
        assert TokenBucket(1, 61, store=store).allow("a")
        assert TokenBucket(1, 60, store=store, name="uploads").allow("a")


def test_in_a_cluster_all_that_is_decided_about_a_key_is_in_one_slot(tmp_path: Path, redis_server: Redis):
    cluster = NativeRedis(tmp_path, cluster=True)
    cluster.start()
    try:
        for client in (client_of(cluster.url), redis.RedisCluster.from_url(cluster.url)):
            store = RedisStore(client, timeout=5, remember=0, prefix=f"tests:{new_name()}")
            both = parse("2/minute; 3/hour", store=store)
            for key in ("", "a}b{c", ("a", 1)):
                assert [both.allow(key) for _ in range(3)] == [True, True, False]
            assert len(both.check_many([f"key {n}" for n in range(20)])) == 20
            store.close()
            client.close()
    finally:
        cluster.close()


class TestTheFormOfTheMethods:
    def test_the_awaited_one_raises_on_a_client_that_blocks(self, store):
        limiter = FixedWindow(1, 60, store=store)
        for awaited in (limiter.check_async, limiter.allow_async, limiter.wait_async, limiter.reserve_async):
            with pytest.raises(TypeError, match="would stop the event loop"):
                asyncio.run(awaited("a"))
        assert limiter.peek("a").remaining == 1

    def test_the_plain_one_raises_on_a_client_of_asyncio(self, redis_server):
        store = RedisStore(redis.asyncio.Redis.from_url(redis_server.url))
        limiter, at_once = FixedWindow(1, 60, store=store), Concurrency(1, store=store)
        for plain in (
            limiter.check,
            limiter.allow,
            limiter.wait,
            limiter.refund,
            limiter.enforce,
            at_once.check,
        ):
            with pytest.raises(TypeError, match="await the form that ends in _async"):
                plain("a")
        with pytest.raises(TypeError, match="_async"), limiter.guard("a"):
            pass

    def test_there_is_nothing_to_dump(self, store):
        with pytest.raises(TypeError, match="the store keeps"):
            FixedWindow(1, 60, store=store).dump()

    def test_only_a_client_of_redis_is_taken(self):
        with pytest.raises(TypeError, match="expected redis"):
            RedisStore("redis://localhost")


def test_a_task_asks_awaits_and_is_guarded_like_a_thread(redis_server: Redis):
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(redis_server.url)
        store = RedisStore(client, timeout=5, prefix=f"tests:{new_name()}")
        for kind in KINDS:
            limiter = kind.make(3, 60, store=store, name=kind.name)
            assert await limiter.check_async("a")
            assert await limiter.allow_async("b")
            await limiter.refund_async("a")
            await limiter.reset_async("a")
            assert [bool(each) for each in await limiter.check_many_async(["a", "c"])] == [True, True]
            while (await limiter.check_async("a")).allowed:
                pass
            with pytest.raises(Refused):
                await limiter.enforce_async("a")
            booked = await limiter.reserve_async("a", max_wait=300)
            assert booked.delay > 0
            assert await booked.cancel_async()
            assert (await limiter.peek_async("b")).limit == 3
            async with limiter.guard("d", timeout=0):
                pass
        at_once = Concurrency(1, store=store)
        async with at_once.guard("a"):
            assert not await at_once.allow_async("a")
            assert await at_once.in_flight_async("a") == 1
        async with at_once:
            assert await at_once.in_flight_async() == 1
        assert await at_once.in_flight_async("a") == 0
        await store.aclose()
        await client.aclose()

    asyncio.run(main())


class TestWaiting:
    def test_threads_and_their_permits_come_in_time(self, store):
        log = SlidingLog(2, 0.2, store=store)
        began_s = time.monotonic()
        for _ in range(5):
            assert log.wait("a", timeout=5)
        assert 0.4 <= time.monotonic() - began_s < 2

    def test_a_time_out_that_will_not_do_is_known_at_once(self, store):
        log = SlidingLog(1, 60, store=store)
        assert log.wait("a")
        began_s = time.monotonic()
        assert not log.wait("a", timeout=30)
        assert not log.wait("a", cost=2)
        assert time.monotonic() - began_s < 5

    def test_a_cancelled_task_spends_nothing(self, redis_server: Redis):
        """Wherever it is cancelled: in line, while it sleeps, or while Redis is being asked."""

        async def main() -> None:
            client = redis.asyncio.Redis.from_url(redis_server.url)
            store = RedisStore(client, timeout=5, prefix=f"tests:{new_name()}")
            log = SlidingLog(50, 60, store=store)
            await log.peek_async("a")
            for n in range(40):
                task = asyncio.create_task(log.wait_async("a"))
                for _ in range(n % 20):
                    await asyncio.sleep(0)
                await asyncio.sleep((n % 5) * 0.0002)
                if not task.cancel():
                    await log.refund_async("a")  # it had passed already
                    continue
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await log.peek_async("a")).remaining == 50
            slow = TokenBucket(1, 60, store=store)
            assert await slow.wait_async("b")
            waiters = [asyncio.create_task(slow.wait_async("b")) for _ in range(3)]
            await asyncio.sleep(0.05)
            for waiter in waiters:
                waiter.cancel()
            assert await asyncio.gather(*waiters, return_exceptions=True)
            assert (await slow.reserve_async("b")).delay <= 60, "nobody is booked before"
            await store.aclose()
            await client.aclose()

        asyncio.run(main())

    def test_no_more_are_booked_in_a_queue_than_it_has_places(self, store):
        queue = LeakyQueue(1, 60, queue=2, store=store)
        booked = [queue.reserve("a") for _ in range(4)]
        assert [bool(each) for each in booked] == [True, True, True, False]
        refused = booked[-1]
        assert 119 < refused.decision.retry_after + 60 <= 120.1 < refused.delay + 0.2
        assert not queue.wait("a", timeout=200), "turned away, and not in line"


class TestLeases:
    def test_what_is_released_is_what_this_process_took(self, store, redis_server):
        other = RedisStore(redis.Redis.from_url(redis_server.url), prefix=store.prefix)
        here, there = Concurrency(2, store=store), Concurrency(2, store=other)
        assert here.allow("a")
        assert there.allow("a")
        assert not here.allow("a")
        there.release("a", 2)
        assert here.in_flight("a") == 1
        here.release("a")
        assert there.in_flight("a") == 0
        other.close()

    def test_a_lease_ends_by_itself_unless_it_is_extended(self, store):
        limiter = Concurrency(1, store=store, lease=0.3)
        assert limiter.allow("a")
        for _ in range(3):
            time.sleep(0.15)
            assert limiter.extend("a") == 1
        assert not limiter.allow("a")
        time.sleep(0.35)
        assert limiter.extend("a") == 0
        assert limiter.allow("a")
        limiter.release("a")
        assert limiter.in_flight("a") == 0, "the one that was over is not the one that was released"

    def test_a_lease_without_a_store_is_a_mistake(self):
        with pytest.raises(ValueError, match="lease"):
            Concurrency(1, lease=5)

    def test_waiters_of_one_process_are_served_when_it_releases(self, store):
        limiter = Concurrency(1, store=store)
        with limiter.guard("a"):
            assert not limiter.wait("a", timeout=0.1)
        assert limiter.wait("a", timeout=1)
        assert limiter.check("a", 2).detail == "1 at the same time"
        limiter.reset("a")
        assert limiter.in_flight("a") == 0


class TestTheMethodsOfOldWithoutTheirRaces:
    """Five ways to limit by Redis that are told everywhere, and what went wrong in each."""

    def test_a_fixed_window_counts_its_first_request_once_and_always_ends(self, store, client):
        window = FixedWindow(20, 10, store=store)
        assert sum(window.allow("a") for _ in range(30)) == 20
        (key,) = client.keys(f"{store.prefix}:*")
        assert 0 < client.ttl(key) <= 10, "no counter without an end"

    def test_a_sliding_window_does_not_record_who_is_refused(self, store):
        log = SlidingLog(5, 0.3, store=store)
        admitted, end_s = 0, time.monotonic() + 0.9
        while time.monotonic() < end_s:
            admitted += log.allow("a")
        assert admitted >= 15, "a busy caller is not locked out"

    def test_two_requests_in_one_tick_count_twice(self, store):
        assert sum(d.allowed for d in SlidingLog(5, 60, store=store).check_many(["a"] * 20)) == 5
        assert SlidingLog(5, 60, store=store).check("b", 5).remaining == 0

    def test_a_token_bucket_fills_again_and_no_fuller_than_it_is(self, store):
        bucket = TokenBucket(20, 1, store=store)
        assert sum(bucket.allow("a") for _ in range(40)) in range(20, 25)
        time.sleep(1.1)
        assert bucket.peek("a").remaining == 20
        time.sleep(0.3)
        assert bucket.peek("a").remaining == 20

    def test_a_meter_drains_and_a_queue_leaks(self, store):
        meter = LeakyBucket(5, 0.5, store=store)
        assert [meter.allow("a") for _ in range(6)] == [True] * 5 + [False]
        time.sleep(0.15)
        assert meter.level("a") <= 4
        queue = LeakyQueue(20, 1, store=store)
        began_s = time.monotonic()
        assert all(queue.wait("a") for _ in range(5))
        assert time.monotonic() - began_s >= 0.2

    def test_the_five_values_of_redis_cell(self, store):
        bucket = TokenBucket(30, 60, 16, store=store)
        assert bucket.as_cl_throttle("user123") == (0, 16, 15, -1, 2)
        counter = SlidingCounter(1, 60, store=store)
        assert [counter.allow("a") for _ in range(2)] == [True, False]
