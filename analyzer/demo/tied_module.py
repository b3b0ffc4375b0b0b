"""Runs another module in this process, and ends it by SIGTERM when the parent has ended in any way."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable


def main() -> None:
    module, *arguments = sys.argv[1:]
    when_parent_ends(lambda: os.kill(os.getpid(), signal.SIGTERM))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def when_parent_ends(act: Callable[[], None]) -> None:
    """Calls `act` in a thread when the parent closes the pipe of standard input, or has ended."""

    def wait() -> None:
        sys.stdin.read()
        act()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
