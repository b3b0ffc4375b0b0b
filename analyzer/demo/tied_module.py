"""Runs another module in this process, and ends it as SIGTERM does when the parent has ended in any way."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    module, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # returns when the parent closes the pipe, or has ended
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
