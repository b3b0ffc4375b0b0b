"""An analyzer with a small share of a core: it counts a backlog slowly, and stops in good order meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.faults.fault_kinds import World
from tests.faults.fleet import Member

PERIOD_S = 0.1  # of the quotas
GROUPS = Path("/sys/fs/cgroup/cpu")
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
    ended_idle: int  # transactions that the database ended because they computed for too long

    @property
    def is_right(self) -> bool:
        """Whether it never ended by itself, stopped in time with everything stored, and counted exactly."""
        is_stopped_well = self.stop_code == 0 and self.stop_s <= STOP_S
        return not self.ended and is_stopped_well and self.are_counts_right and not self.ended_idle

    def __str__(self) -> str:
        return (
            f"{self.records:,} records in {self.seconds:.0f} s with {self.cpu_s:.1f} CPU-s;"
            f" ended by itself: {self.ended or 'never'};"
            f" SIGTERM: ended with {self.stop_code} after {self.stop_s:.1f} s and stored"
            f" {self.stored_by_stop:,} records meanwhile;"
            f" transactions ended because they were idle: {self.ended_idle};"
            f" every count {'right' if self.are_counts_right else 'WRONG'}"
        )


def cpu_clock_of(pid: int) -> Callable[[], float]:
    """Returns a clock of the CPU time of another process, in seconds (`clock_getcpuclockid` of Linux)."""
    clock = (~pid << 3) | 2
    return lambda: time.clock_gettime(clock)


@contextmanager
def scheduler_group(pid: int, share: float) -> Iterator[None]:
    """Puts a process into a scheduler group of the kernel with that share. Raises OSError."""
    group = GROUPS / f"gatelock-{pid}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(f"{PERIOD_S * 1e6:.0f}")
        (group / "cpu.cfs_quota_us").write_text(f"{share * PERIOD_S * 1e6:.0f}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with suppress(OSError):  # it has ended
            (GROUPS / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@contextmanager
def share_of_core(pid: int, share: float) -> Iterator[Callable[[], float]]:
    """Gives a process `share` of a core, by a scheduler group, or where none can be made by signals.

    Yields the clock of its CPU time.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(scheduler_group(pid, share))
        except OSError:
            stack.enter_context(stopped_at_times(pid, share))
        yield cpu_clock_of(pid)


@contextmanager
def stopped_at_times(pid: int, share: float) -> Iterator[None]:
    """Gives a process `share` of a core, as a scheduler group does, by SIGSTOP and SIGCONT."""
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
        yield
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
        records, time.monotonic() - began_s, used_s, ended, stop_s, stop_code, stored_by_stop, right,
        (fleet.folder / "analyzers.log").read_text().count("idle-in-transaction"),
    )  # fmt: skip
