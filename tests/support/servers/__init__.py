"""Real servers for tests: at a given address, in a container, or started here."""

from __future__ import annotations

import os
from pathlib import Path

# The Debian packages with which each server can be started here.
PACKAGES = {
    "kafka": "default-jre-headless maven",
    "nginx": "nginx-light",
    "pgbouncer": "pgbouncer",
    "postgresql": "postgresql",
    "prometheus": "prometheus",
    "redis": "redis-server",
    "tlc": "default-jre-headless maven",
    "uwsgi": "uwsgi-core uwsgi-plugin-python3",
}


class Missing(Exception):
    """A server is not available on this machine; the message is the reason in a few words."""


def container_engine() -> None:
    """Checks for a container engine. Raises Missing.

    Called before testcontainers is imported, because the import takes a second.
    """
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        raise Missing("no container engine")
