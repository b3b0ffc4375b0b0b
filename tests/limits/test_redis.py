"""Limiters in a real Redis: round trips, keys that they leave behind, waiting, both kinds of client."""

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
    ByPlan,
    Concurrency,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Paced,
    Sharded,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
    parse,
)
from gatekeeper.limits.redis import RedisStore
from gatekeeper.limits.redis.leases import SharedConcurrency
from gatekeeper.limits.redis.shared_limiters import SharedTokenBucket
from gatekeeper.model import Refused
from tests.limits.redis_kinds import KINDS, Kind, new_name
from tests.limits.round_trips import RoundTripCounter
from tests.support.servers.redis import NativeRedis, Redis, client_of
from tests.support.waiting import wait_until

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
def trips(redis_server: Redis) -> Iterator[RoundTripCounter]:
    trips = RoundTripCounter(redis.connection.parse_url(redis_server.url)["port"])
    yield trips
    trips.close()


class TestRoundTrips:
    @pytest.fixture
    def store(self, trips: RoundTripCounter) -> Iterator[RedisStore]:
        store = RedisStore(redis.Redis(port=trips.port), timeout=5, prefix=f"tests:{new_name()}")
        FixedWindow(1, 1, store=store).allow("connects")
        yield store
        store.close()

    @every_kind
    def test_a_decision_costs_one_and_a_hundred_decisions_cost_one(self, store, trips, kind: Kind):
        limiter = kind.make(1000, 60, store=store)
        limiter.allow("loads the script")
        before = trips.count
        limiter.check("a")
        assert trips.count - before == 1
        limiter.check_many([f"key {n}" for n in range(100)])
        assert trips.count - before == 2

    def test_several_limits_together_cost_one(self, store, trips):
        both = parse("10/second; 1000/hour", store=store)
        both.allow("loads the script")
        before = trips.count
        both.check("a")
        assert trips.count - before == 1

    def test_a_permit_of_concurrency_costs_one_and_its_release_another(self, store, trips):
        limiter = Concurrency(5, store=store)
        limiter.peek("loads the script")
        before = trips.count
        with limiter.guard("a"):
            assert trips.count - before == 1
        assert trips.count - before == 2

    @every_kind
    def test_a_key_that_is_known_to_be_refused_costs_none(self, store, trips, kind: Kind):
        limiter = kind.make(2, 60, store=store)
        while limiter.check("a"):
            pass
        before = trips.count
        assert not any(limiter.allow("a") for _ in range(50))
        assert not limiter.check_many(["a", "a"])[1]
        first, second = limiter.check("a"), limiter.check("a")
        assert trips.count == before
        assert 0 < second.retry_after < first.retry_after < 60
        assert limiter.peek("a").retry_after < second.retry_after, (
            "a remembered refusal ends no sooner than the real one"
        )

    def test_refunds_resets_and_other_limits_take_effect_at_once_in_one_process(self, store):
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

    def test_changes_in_another_process_take_effect_when_remember_ends_or_with_a_peek(self, store, trips):
        here = SlidingLog(1, 60, store=store, name="n")
        other = RedisStore(redis.Redis(port=trips.port), prefix=store.prefix, remember=0.5)
        there = SlidingLog(1, 60, store=other, name="n")
        assert here.allow("a")
        assert not here.allow("a")
        assert not there.allow("a")
        there.reset("a")
        assert not here.allow("a"), "remembered until its end"
        assert here.peek("a")
        assert here.allow("a")
        assert not there.allow("a")
        here.reset("a")
        assert not there.allow("a")
        time.sleep(0.55)
        assert there.allow("a"), "remembered for as long as `remember` says"
        other.close()


class TestKeysInRedis:
    @every_kind
    def test_a_key_expires_when_it_equals_a_new_one(self, store, client, kind: Kind):
        limiter = kind.make(3, 60, store=store)
        for _ in range(3):
            limiter.allow("a")
            (key,) = client.keys(f"{store.prefix}:*")
            before_s = client.pttl(key) / 1000
            reset_after = limiter.peek("a").reset_after
            after_s = client.pttl(key) / 1000  # less is left with each read, also on a slow machine
            assert reset_after <= before_s
            assert after_s <= (121 if kind.name == "SlidingCounter" else reset_after + 0.2)

    @every_kind
    def test_a_booked_key_does_not_expire_before_the_booking(self, store, client, kind: Kind):
        limiter = kind.make(1, 1, store=store)
        began_s = time.monotonic()
        last = [limiter.reserve("a") for _ in range(5)][-1]
        (key,) = client.keys(f"{store.prefix}:*")
        left_s = client.pttl(key) / 1000
        assert left_s + (time.monotonic() - began_s) >= last.delay + 0.5

    def test_no_key_is_left_after_the_period(self, store, client):
        for kind in KINDS:
            kind.make(3, 0.05, store=store).check_many(["a", "b"])
        Concurrency(3, store=store, lease=0.05).allow("a")
        time.sleep(0.25)
        assert client.keys(f"{store.prefix}:*") == []

    def test_peeks_refunds_and_refusals_write_nothing(self, store, client):
        for kind in KINDS:
            limiter = kind.make(3, 60, store=store)
            limiter.peek("a")
            limiter.refund("a", 2)
            limiter.check("a", 0)
            limiter.check("a", 9)
        assert client.keys(f"{store.prefix}:*") == []

    def test_keys_and_names_never_collide(self, store):
        log = SlidingLog(1, 60, store=store)
        keys = ["", "a", "=a", "a}", "{a", '["a",1]', ("a", 1), ("a", "1"), ("a",), "\ud800", "a b\n"]
        assert all(decision.allowed for decision in log.check_many(keys))
        named = [SlidingLog(1, 60, store=store, name=name) for name in ("x", "x:y", "{x}", "x}", "%7B")]
        assert all(limiter.allow(key) for limiter in named for key in ("a", "y:a", ":{=a"))

    def test_limiters_without_a_name_are_one_if_their_numbers_are_equal(self, store):
        assert TokenBucket(1, 60, store=store).allow("a")
        assert not TokenBucket(1, 60, store=store).allow("a")
        assert TokenBucket(1, 61, store=store).allow("a")
        assert TokenBucket(1, 60, store=store, name="uploads").allow("a")


def test_in_a_cluster_all_limits_of_a_key_are_in_one_slot(tmp_path: Path, redis_server: Redis):
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


class TestClasses:
    def test_a_limiter_in_a_store_is_of_a_named_subclass(self, store):
        made = {
            "SharedFixedWindow": FixedWindow(1, 60, store=store),
            "SharedLeakyBucket": LeakyBucket(1, 60, store=store),
            "SharedLeakyQueue": LeakyQueue(1, 60, store=store),
            "SharedSlidingCounter": SlidingCounter(1, 60, store=store),
            "SharedSlidingLog": SlidingLog(1, 60, store=store),
            "SharedTokenBucket": TokenBucket.strict(1, 60, store=store),
            "SharedAllOf": parse("1/s; 2/m", store=store),
            "SharedConcurrency": Concurrency(1, store=store),
        }
        assert [type(limiter).__name__ for limiter in made.values()] == [*made]
        assert all(repr(limiter).startswith(f"<{name} ") for name, limiter in made.items())
        assert all(isinstance(limiter, type(limiter).__mro__[2:]) for limiter in made.values())
        assert isinstance(made["SharedTokenBucket"], TokenBucket)
        for limiter in made.values():
            assert (limiter.store, limiter.is_awaited, limiter.overflowed) == (store, False, 0)
        assert [limiter.holds_permits for limiter in made.values()] == [False] * 7 + [True]

    def test_the_subclass_can_be_created_itself_and_needs_a_store(self, store):
        bucket = SharedTokenBucket(1, 60, store=store, name="n")
        assert type(bucket) is SharedTokenBucket
        assert bucket.allow("a")
        assert not TokenBucket(1, 60, store=store, name="n").allow("a"), "the same keys"
        for make in (lambda: SharedTokenBucket(1, 60), lambda: SharedConcurrency(1)):
            with pytest.raises(TypeError, match=r"Shared\w+: expected store=RedisStore"):
                make()
        with pytest.raises(TypeError, match="Paced has no form whose keys are in a store"):
            Paced(1, 60, store=store)

    def test_subclasses_of_an_application_keep_their_methods_and_name_their_keys(self, store, client):
        class Uploads(TokenBucket):
            def is_full(self) -> bool:
                return self.peek().remaining == 1

        class Both(AllOf):
            pass

        uploads = Uploads(1, 60, store=store, name="n")
        assert (type(uploads).__name__, isinstance(uploads, Uploads)) == ("SharedUploads", True)
        assert uploads.is_full()
        assert Both(uploads).allow()
        assert not uploads.is_full()
        assert client.keys(f"{store.prefix}:*") == [f"{store.prefix}:Uploads:n:{{=}}".encode()]

    def test_plans_and_shards_call_the_form_of_their_limiters(self, redis_server):
        async def main() -> None:
            client = redis.asyncio.Redis.from_url(redis_server.url)
            store = RedisStore(client, timeout=5, prefix=f"tests:{new_name()}")
            plans = ByPlan({"free": SlidingLog(1, 60, store=store, name="free")}, default="free")
            shards = Sharded(lambda: SlidingLog(1, 60, store=store, name="shard"), shards=2)
            for limiter in (plans, shards):
                assert (limiter.is_awaited, limiter.store) == (True, store)
                assert (await limiter.peek_async("a")).remaining == 1
                assert (await limiter.enforce_async("a")).remaining == 0
                assert not await limiter.allow_async("a")
                assert not await limiter.reserve_async("a", max_wait=0)
                await limiter.refund_async("a")
                assert await limiter.allow_async("a"), "a guard gives permits back in this form"
            assert [bool(decision) for decision in await shards.check_many_async(["a", "b"])] == [False, True]
            await store.aclose()
            await client.aclose()

        asyncio.run(main())


class TestTheFormOfTheMethods:
    def test_the_awaited_form_raises_with_a_client_that_blocks(self, store):
        limiter = FixedWindow(1, 60, store=store)
        for awaited in (limiter.check_async, limiter.allow_async, limiter.wait_async, limiter.reserve_async):
            with pytest.raises(TypeError, match="would stop the event loop"):
                asyncio.run(awaited("a"))
        assert limiter.peek("a").remaining == 1

    def test_the_plain_form_raises_with_an_asyncio_client(self, redis_server):
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

    def test_dump_raises(self, store):
        with pytest.raises(TypeError, match="the store keeps"):
            FixedWindow(1, 60, store=store).dump()

    def test_a_store_takes_only_a_client_of_redis(self):
        with pytest.raises(TypeError, match="expected redis"):
            RedisStore("redis://localhost")


def test_all_methods_work_in_a_task(redis_server: Redis):
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(redis_server.url)
        store = RedisStore(client, timeout=5, prefix=f"tests:{new_name()}")
        for kind in KINDS:
            limiter = kind.make(3, 60, store=store, name=kind.name)
            assert await limiter.check_async("a")
            assert await limiter.allow_async("b")
            await limiter.refund_async("a")
            await limiter.reset_async("a")
            assert [decision.allowed for decision in await limiter.check_many_async(["a", "c"])] == [
                True,
                True,
            ]
            while (await limiter.check_async("a")).allowed:
                pass
            with pytest.raises(Refused):
                await limiter.enforce_async("a")
            booked = await limiter.reserve_async("a", max_wait=300)
            assert booked.delay > 0
            assert await booked.cancel_async()
            assert (await limiter.peek_async("b")).limit == limiter._rule.decision_limit
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
    def test_a_thread_gets_its_permits_in_time(self, store):
        log = SlidingLog(2, 0.2, store=store)
        began_s = time.monotonic()
        for _ in range(5):
            assert log.wait("a", timeout=5)
        assert 0.4 <= time.monotonic() - began_s < 5

    def test_a_timeout_that_does_not_suffice_refuses_at_once(self, store):
        log = SlidingLog(1, 60, store=store)
        assert log.wait("a")
        began_s = time.monotonic()
        assert not log.wait("a", timeout=30)
        assert not log.wait("a", cost=2)
        assert time.monotonic() - began_s < 5

    def test_a_cancelled_task_spends_nothing(self, redis_server: Redis):
        """At any moment: in the queue, during its sleep, or during a call of Redis."""

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
            results = await asyncio.gather(*waiters, return_exceptions=True)
            assert [type(result) for result in results] == [asyncio.CancelledError] * 3
            assert (await slow.reserve_async("b")).delay <= 60, "no other booking lies before it"
            await store.aclose()
            await client.aclose()

        asyncio.run(main())

    def test_a_queue_takes_no_more_bookings_than_it_has_places(self, store):
        queue = LeakyQueue(1, 60, queue=2, store=store)
        booked = [queue.reserve("a") for _ in range(4)]
        assert [bool(booking) for booking in booked] == [True, True, True, False]
        refused = booked[-1]
        assert 50 < refused.decision.retry_after <= 60
        assert 170 < refused.delay <= 180
        assert not queue.wait("a", timeout=200), "refused, not queued"


class TestLeases:
    def test_a_process_releases_only_what_it_took(self, store, redis_server):
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
        assert limiter.in_flight("a") == 0, "the ended lease is not the one that was released"

    def test_a_lease_without_a_store_raises(self):
        with pytest.raises(ValueError, match="lease"):
            Concurrency(1, lease=5)

    def test_a_released_permit_is_free_and_a_reset_releases_all(self, store):
        limiter = Concurrency(1, store=store)
        with limiter.guard("a"):
            assert not limiter.wait("a", timeout=0.1)
        assert limiter.wait("a", timeout=1)
        assert limiter.check("a", 2).detail == "1 at the same time"
        limiter.reset("a")
        assert limiter.in_flight("a") == 0


class TestKnownBugsOfRedisLimiters:
    """Five popular ways to limit with Redis, and the bug that is common in each."""

    def test_a_fixed_window_counts_its_first_request_once_and_always_expires(self, store, client):
        window = FixedWindow(20, 10, store=store)
        assert sum(window.allow("a") for _ in range(30)) == 20
        (key,) = client.keys(f"{store.prefix}:*")
        assert 0 < client.ttl(key) <= 10, "every counter expires"

    def test_a_sliding_window_does_not_record_refused_requests(self, store):
        log = SlidingLog(5, 0.3, store=store)
        admitted, end_s = 0, time.monotonic() + 10
        while admitted < 15:
            assert time.monotonic() < end_s, "a caller that does not stop is refused forever"
            admitted += log.allow("a")

    def test_two_requests_in_one_tick_count_twice(self, store):
        assert (
            sum(decision.allowed for decision in SlidingLog(5, 60, store=store).check_many(["a"] * 20)) == 5
        )
        assert SlidingLog(5, 60, store=store).check("b", 5).remaining == 0

    def test_a_token_bucket_refills_up_to_its_burst(self, store):
        bucket = TokenBucket(20, 1, store=store)
        began_s = time.monotonic()
        admitted = sum(bucket.allow("a") for _ in range(40))
        assert 20 <= admitted <= 20 + 20 * (time.monotonic() - began_s)
        time.sleep(1.1)
        assert bucket.peek("a").remaining == 20
        time.sleep(0.3)
        assert bucket.peek("a").remaining == 20

    def test_a_leaky_bucket_drains_and_a_leaky_queue_spaces_departures(self, store):
        meter = LeakyBucket(5, 10, store=store)  # one leaves after two seconds
        assert [meter.allow("a") for _ in range(6)] == [True] * 5 + [False]
        wait_until(lambda: meter.level("a") <= 4)
        queue = LeakyQueue(20, 1, store=store)
        began_s = time.monotonic()
        assert all(queue.wait("a") for _ in range(5))
        assert time.monotonic() - began_s >= 0.2

    def test_the_cl_throttle_form_has_the_five_values_of_redis_cell(self, store):
        bucket = TokenBucket(30, 60, 16, store=store)
        assert bucket.as_cl_throttle("user123") == (0, 16, 15, -1, 2)

    def test_a_sliding_counter_of_one_admits_one(self, store):
        counter = SlidingCounter(1, 60, store=store)
        assert [counter.allow("a") for _ in range(2)] == [True, False]
