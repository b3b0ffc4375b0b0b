"""Become another program that ends when its parent does: launch.py SIGNAL USER PROGRAM ARGUMENT...

The kernel sends SIGNAL when the thread that started us ends, however it ends; an aborted test run
leaves no server on its port for the next run to talk to. USER is "" to stay who we are. A program
of its own, because code between fork and exec is unsafe in a process that has threads.
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
