"""Redis for tests: an address, a container, or a server of our own that keeps nothing on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import redis

from tests.support.servers import Missing, container_engine
from tests.support.servers.child import Child, free_port

CLUSTER_S_MAX = 10.0
CLUSTER = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")


class NativeRedis:
    """One server on 127.0.0.1, in memory alone; as a cluster of one node it refuses to mix slots."""

    def __init__(self, folder: Path, *, cluster: bool = False) -> None:
        """Raises Missing."""
        program = find_program()
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.kind = f"native {program_version(program)}"
        self._cluster = cluster
        settings = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no")
        command = [str(program), *settings, *(CLUSTER if cluster else ())]
        self._child = Child(command, folder, last_word=signal.SIGKILL)

    def start(self) -> None:
        """Returns when it takes commands."""
        self._child.start(ready=self._answers)
        if self._cluster:
            with client_of(self.url) as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            end_s = time.monotonic() + CLUSTER_S_MAX
            while not self._takes_keys():
                assert time.monotonic() < end_s, "the cluster does not come up"
                time.sleep(0.02)

    def kill(self) -> None:
        self._child.kill()

    def pause(self) -> None:
        """Stop it where it stands: connections stay open, nothing answers."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def close(self) -> None:
        self._child.resume()
        self._child.kill()

    def _takes_keys(self) -> bool:
        try:
            with client_of(self.url) as client:
                client.get("any")
        except redis.ResponseError:  # the cluster is down
            return False
        return True

    def _answers(self) -> bool:
        try:
            with client_of(self.url) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class GivenRedis:
    """A server that somebody else started."""

    def __init__(self, url: str, kind: str, container: Any = None) -> None:
        self.url = url
        self.kind = kind
        self._container = container

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()


Redis = NativeRedis | GivenRedis


def find_redis(folder: Path) -> Redis:
    """The first Redis that can be had: an address, a container, a native one. Raises Missing."""
    if address := os.environ.get("GATELOCK_TEST_REDIS"):
        return GivenRedis(address, f"at {address.rpartition('@')[2]}")
    with contextlib.suppress(Missing):
        return redis_container()
    native = NativeRedis(folder)
    native.start()
    return native


def redis_container() -> GivenRedis:
    """A server in a container. Raises Missing."""
    container_engine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, not ours
        from docker.errors import DockerException
        from testcontainers.community.redis import RedisContainer

        try:
            container = RedisContainer("redis:7")
            container.start()
        except (DockerException, OSError, TimeoutError) as failed:
            raise Missing(f"no container: {failed}") from failed
    address = f"{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
    return GivenRedis(f"redis://{address}/0", f"container {container.image}", container)


def client_of(url: str) -> redis.Redis:
    """A client for looking into a server, that waits for a second at most."""
    return redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)


def find_program() -> Path:
    """Where redis-server is. Raises Missing."""
    program = shutil.which("redis-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/bin")
    if program is None:
        raise Missing("no redis-server")
    return Path(program)


def program_version(program: Path) -> str:
    """For example 7.0.15."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    words = dict(word.split("=", 1) for word in said.stdout.split() if "=" in word)
    return words.get("v", "unknown")
