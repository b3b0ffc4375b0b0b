"""Who is at the keyboard, for the account of manual acts."""

from __future__ import annotations

import getpass
import os
import socket


def operator_name() -> str:
    """The user who gave the command, and on which machine: who called `sudo` rather than root.

    Not proof of anything: whoever may write to the database may write any name.
    """
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
