"""Real servers for tests, wherever they can be had: a given address, a container, a native start."""

from __future__ import annotations

import os
from pathlib import Path


class Missing(Exception):
    """This way to a server is not open on this machine; the message says why, in a few words."""


def container_engine() -> None:
    """Nothing when an engine for containers may answer. Raises Missing.

    Looked at before testcontainers is imported, which takes a second.
    """
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        raise Missing("no container engine")
