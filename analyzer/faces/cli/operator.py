"""The operator's name, for the audit log."""

from __future__ import annotations

import getpass
import os
import socket


def operator_name() -> str:
    """The user and the machine: `ann@ops1`. Under `sudo`, the user that called it.

    Not authenticated: a process that can write to the database can write any name.
    """
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
