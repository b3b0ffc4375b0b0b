"""A process of the demo ends with its parent, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.support.servers.child import free_port
from tests.support.waiting import PATIENCE_S, wait_for

PARENT = """\
import signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-m", "analyzer.demo.tied_module", "http.server", sys.argv[1], "--bind", "127.0.0.1"],
    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=sys.stderr, start_new_session=True,
)
print(child.pid, flush=True)
signal.pause()
"""


def test_a_module_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT, str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        wait_for(parent.stdout.readline)
        parent.send_signal(signal.SIGKILL)
        # The child holds the other end of this pipe: it is at its end when that has ended, too.
        assert "Traceback" not in parent.communicate(timeout=PATIENCE_S)[1]
