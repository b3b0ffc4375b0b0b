"""Redis for tests: a server at a given address, in a container, or started here without files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import warnings
from pathlib import Path
from typing import Any

import redis

from tests.support.servers import Missing, container_engine
from tests.support.servers.child import Child, free_port
from tests.support.waiting import wait_until

CLUSTER_S_MAX = 10.0
CLUSTER_PORT_MAX = 22_000
CLUSTER = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")


class NativeRedis:
    """One server on 127.0.0.1, in memory only; with `cluster` a cluster of one node."""

    def __init__(self, folder: Path, *, cluster: bool = False) -> None:
        """Raises Missing."""
        program = find_program()
        # A cluster listens at this port + 10,000, too, where outgoing connections must not be given it.
        self.port = next(port for port in iter(free_port, 0) if not cluster or port < CLUSTER_PORT_MAX)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.kind = f"native {program_version(program)}"
        self._cluster = cluster
        settings = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no")
        command = [str(program), *settings, *(CLUSTER if cluster else ())]
        self._child = Child(command, folder, parent_death_signal=signal.SIGKILL)

    def start(self) -> None:
        """Returns when the server answers commands."""
        self._child.start(ready=self._answers)
        if self._cluster:
            with client_of(self.url) as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(self._accepts_keys, CLUSTER_S_MAX, lambda: "the cluster does not come up")

    def kill(self) -> None:
        self._child.kill()

    def pause(self) -> None:
        """Suspends the process: connections stay open, and nothing answers."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def close(self) -> None:
        self._child.resume()
        self._child.kill()

    def _accepts_keys(self) -> bool:
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
    """A server that was not started here."""

    def __init__(self, url: str, kind: str, container: Any = None) -> None:
        self.url = url
        self.kind = kind
        self._container = container

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()


Redis = NativeRedis | GivenRedis


def find_redis(folder: Path) -> Redis:
    """Returns the first Redis that is available: at an address, in a container, native. Raises Missing."""
    if address := os.environ.get("GATELOCK_TEST_REDIS"):
        return GivenRedis(address, f"at {address.rpartition('@')[2]}")
    with contextlib.suppress(Missing):
        return redis_container()
    native = NativeRedis(folder)
    native.start()
    return native


def redis_container() -> GivenRedis:
    """Starts a server in a container. Raises Missing."""
    container_engine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of testcontainers
        from docker.errors import DockerException
        from testcontainers.community.redis import RedisContainer

        try:
            container = RedisContainer("redis:7")
            container.start()
        except (DockerException, OSError, TimeoutError) as error:
            raise Missing(f"no container: {error}") from error
    address = f"{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
    return GivenRedis(f"redis://{address}/0", f"container {container.image}", container)


def client_of(url: str) -> redis.Redis:
    """Returns a client with time-outs of a second."""
    return redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)


def find_program() -> Path:
    """Returns the path of redis-server. Raises Missing."""
    program = shutil.which("redis-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/bin")
    if program is None:
        raise Missing("no redis-server")
    return Path(program)


def program_version(program: Path) -> str:
    """Returns the version, for example 7.0.15."""
    result = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    words = dict(word.split("=", 1) for word in result.stdout.split() if "=" in word)
    return words.get("v", "unknown")
