"""The Redis for tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.support.servers.redis import NativeRedis, Redis, client_of


def test_a_value_goes_through_the_server_that_was_found(redis_server: Redis) -> None:
    with client_of(redis_server.url) as client:
        client.set("tests/servers", "kept", ex=60)
        assert client.get("tests/servers") == b"kept"


def test_a_killed_server_loses_its_keys_and_a_paused_one_does_not_answer(own_redis: NativeRedis) -> None:
    with client_of(own_redis.url) as client:
        client.set("mine", "1")
    own_redis.kill()
    own_redis.start()
    with client_of(own_redis.url) as client:
        assert client.get("mine") is None
    own_redis.pause()
    with client_of(own_redis.url) as client, pytest.raises(redis.TimeoutError):
        client.get("mine")
    own_redis.resume()


@pytest.mark.usefixtures("redis_server")  # skips the test when there is none
def test_a_cluster_of_one_node_refuses_to_mix_slots(tmp_path: Path) -> None:
    cluster = NativeRedis(tmp_path, cluster=True)
    cluster.start()
    try:
        with client_of(cluster.url) as client, pytest.raises(redis.ResponseError, match="slot"):
            client.mget("a", "b")
    finally:
        cluster.close()
