"""An analyzer with a small share of a core: it counts a backlog slowly, and stops in good order meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.faults.fault_kinds import World
from tests.faults.fleet import Member

PERIOD_S = 0.1  # as that of the kernel's quotas
STOP_S = 25.0  # within which it has stored; Kubernetes waits 30 s


class StarvedOutcome(NamedTuple):
    """The result of an analyzer that counted a backlog."""

    records: int
    seconds: float
    cpu_s: float
    ended: list[int]  # exit codes of the times it ended without being asked to
    stop_s: float  # from SIGTERM until it had ended
    stop_code: int
    stored_by_stop: int
    are_counts_right: bool

    @property
    def is_right(self) -> bool:
        """Whether it never ended by itself, stopped in time with everything stored, and counted exactly."""
        return not self.ended and self.stop_code == 0 and self.stop_s <= STOP_S and self.are_counts_right

    def __str__(self) -> str:
        return (
            f"{self.records:,} records in {self.seconds:.0f} s with {self.cpu_s:.1f} CPU-s;"
            f" ended by itself: {self.ended or 'never'};"
            f" SIGTERM: ended with {self.stop_code} after {self.stop_s:.1f} s and stored"
            f" {self.stored_by_stop:,} records meanwhile;"
            f" every count {'right' if self.are_counts_right else 'WRONG'}"
        )


def cpu_clock_of(pid: int) -> Callable[[], float]:
    """Returns a clock of the CPU time of another process, in seconds (`clock_getcpuclockid` of Linux)."""
    clock = (~pid << 3) | 2
    return lambda: time.clock_gettime(clock)


@contextmanager
def share_of_core(pid: int, share: float) -> Iterator[Callable[[], float]]:
    """Gives a process `share` of a core, as a quota of a scheduler group does, by SIGSTOP and SIGCONT.

    Yields the clock of its CPU time.
    """
    ended, cpu_s = threading.Event(), cpu_clock_of(pid)

    def govern() -> None:
        began_s, used_s = time.monotonic(), cpu_s()
        while not ended.is_set():
            try:
                over_s = (cpu_s() - used_s) / share - (time.monotonic() - began_s)
                if over_s < -PERIOD_S:  # what it did not use is not kept for later
                    began_s, used_s = time.monotonic(), cpu_s()
                if over_s > 0:
                    os.kill(pid, signal.SIGSTOP)
                    ended.wait(over_s)
                    os.kill(pid, signal.SIGCONT)
                else:
                    ended.wait(share * PERIOD_S)
            except OSError:
                return  # it has ended

    thread = threading.Thread(target=govern, daemon=True)
    thread.start()
    try:
        yield cpu_s
    finally:
        ended.set()
        thread.join()


def count_starved(
    world: World, records: int, share: float, within_s: float, log: Callable[[str], object]
) -> StarvedOutcome:
    """Has one analyzer with `share` of a core count `records` that wait, and stops it once in the middle."""
    fleet, traffic = world.fleet, world.traffic
    traffic.rate = 50_000
    traffic.release(records)
    traffic.start()
    traffic.wait_until_written()
    traffic.stop()
    log(f"{records:,} records wait")
    began_s, used_s, ended = time.monotonic(), 0.0, []

    def count_to(target: int) -> Member:
        """Runs an analyzer, again whenever it ends, until `target` records are seen."""
        nonlocal used_s
        while True:
            member = fleet.join()
            with share_of_core(member.pid, share) as cpu_s:
                last, told_s = 0.0, time.monotonic()
                while member.poll() is None:
                    last = cpu_s()
                    if fleet.seen() >= target:
                        return member
                    if time.monotonic() - told_s >= 20:
                        told_s = time.monotonic()
                        log(f"{fleet.seen():,} seen, {last:.1f} CPU-s")
                    assert time.monotonic() - began_s < within_s, f"{fleet.seen():,} seen\n{fleet.log()}"
                    time.sleep(0.5)
            used_s += last
            ended.append(member.returncode)
            fleet.members.remove(member)

    member = count_to(records // 4)
    with share_of_core(member.pid, share) as cpu_s:
        stored, stop_began_s = fleet.seen(), time.monotonic()
        used_s += cpu_s()
        member.terminate()
        stop_code = member.wait(120)
        stop_s = time.monotonic() - stop_began_s
    fleet.members.remove(member)
    stored_by_stop = fleet.seen() - stored
    log(f"stopped with {stop_code} after {stop_s:.1f} s, {fleet.seen():,} seen")
    member = count_to(traffic.expected.records)
    used_s += cpu_clock_of(member.pid)()
    right = fleet.counts() == traffic.expected.counts
    with share_of_core(member.pid, 1.0):
        fleet.leave(member)
    return StarvedOutcome(
        records, time.monotonic() - began_s, used_s, ended, stop_s, stop_code, stored_by_stop, right
    )
