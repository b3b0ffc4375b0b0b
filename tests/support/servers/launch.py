"""Runs another program that ends when its parent does: launch.py SIGNAL USER PROGRAM ARGUMENT...

The kernel sends SIGNAL when the thread that started this process ends, even by SIGKILL: an aborted test run
leaves no server behind. An empty USER keeps the current one. This is a separate program, because code between
fork and exec is unsafe in a process that has threads.
"""

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1

signal, user, *command = sys.argv[1:]
if user:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal))  # last: a change of user clears it
os.execvp(command[0], command)
