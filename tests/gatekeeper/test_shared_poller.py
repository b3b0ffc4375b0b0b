"""The shared poller: one of several processes fetches, the others read the files that it writes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatekeeper.model import Cursor, Lock, Set, SourceError, Update
from gatekeeper.sources import shared_poller
from gatekeeper.sources.shared_poller import SharedSource
from gatekeeper.view.lock_view import EMPTY, LockView, apply
from tests.support.feed import HandFeed, a_lock

OVERDUE_S = 15.0


class Process:
    """A process that shares the poller: its source, and the view that it builds."""

    def __init__(self, host: Host) -> None:
        self.source = SharedSource(host.feed, host.path, OVERDUE_S, lambda: host.now_s)
        self.view: LockView = EMPTY
        self.waited = 0.0

    def poll(self) -> Update:
        update = self.source.fetch(self.view.at)
        self.view = apply(self.view, update)
        self.waited = update.waited
        return update

    @property
    def callers(self) -> set[str]:
        return {lock.key for lock in self.view}


class Host:
    """A machine with its clock and disk, and the feed."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1_000.0
        self.path = folder / "view"
        self.feed = HandFeed(a_lock())
        self.processes: list[Process] = []

    def process(self) -> Process:
        self.processes.append(Process(self))
        return self.processes[-1]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for process in host.processes:
        process.source.close()


def test_the_leader_fetches_and_the_followers_read(host: Host) -> None:
    leader, follower, third = host.process(), host.process(), host.process()
    leader.poll()
    assert [process.poll().at for process in (follower, third)] == [host.feed.at] * 2
    assert follower.callers == third.callers == {"api_key:acme"}
    host.feed.set(a_lock("user:bob"))
    host.feed.clear(a_lock())
    leader.poll()
    update = follower.poll()
    assert (update.since, update.snapshot, follower.callers) == (1, False, {"user:bob"})
    assert third.poll().changes == update.changes
    assert not follower.poll().changes
    assert len(host.feed.fetches) == 2


def test_the_age_of_a_followers_view_counts_from_the_leaders_request(host: Host) -> None:
    leader, follower = host.process(), host.process()
    leader.poll()
    host.now_s += 7.0
    follower.poll()
    assert follower.waited == -7.0
    assert leader.source.is_leader
    assert not follower.source.is_leader


def test_when_the_leader_ends_another_process_leads_with_its_next_poll(host: Host) -> None:
    leader, follower, third = host.process(), host.process(), host.process()
    for process in (leader, follower, third):
        process.poll()
    leader.source.close()
    host.feed.set(a_lock("user:bob"))
    follower.poll()
    third.poll()
    assert [process.source.is_leader for process in (leader, follower, third)] == [False, True, False]
    assert follower.callers == third.callers == {"api_key:acme", "user:bob"}


def test_when_the_leader_hangs_each_follower_fetches_for_itself(host: Host) -> None:
    leader, follower = host.process(), host.process()
    leader.poll()
    follower.poll()
    host.feed.set(a_lock("user:bob"))
    host.now_s += OVERDUE_S
    assert "user:bob" not in (follower.poll(), follower.callers)[1]
    host.now_s += 0.1
    follower.poll()
    assert "user:bob" in follower.callers
    leader.poll()
    assert follower.poll().waited == 0.0
    assert not follower.source.is_leader


def test_a_follower_without_any_file_to_read_fetches_for_itself(host: Host) -> None:
    leader, follower = host.process(), host.process()
    assert leader.source._try_to_lead()
    follower.poll()
    assert follower.callers == {"api_key:acme"}


def test_a_follower_that_missed_more_than_is_kept_reads_the_snapshot(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_poller, "KEPT_CHANGES_MAX", 10)
    leader, follower, late = host.process(), host.process(), host.process()
    leader.poll()
    for n in range(100):
        host.feed.set(a_lock(f"user:{n}"), a_lock(f"api_key:{n % 7}"))
        host.feed.clear(a_lock(f"user:{n - 3}"))
        leader.poll()
        if n % 2:
            assert follower.poll().at == host.feed.at
        if not n % 33:
            late.poll()
    for process in (follower, late):
        process.poll()
        assert set(process.view) == set(host.feed.locks.values())


def test_an_update_larger_than_what_is_kept_reaches_the_followers(host: Host) -> None:
    leader, follower = host.process(), host.process()
    leader.poll()
    follower.poll()
    host.feed.set(*(a_lock(f"user:{n}") for n in range(2 * shared_poller.KEPT_CHANGES_MAX)))
    leader.poll()
    follower.poll()
    assert set(follower.view) == set(host.feed.locks.values())
    host.feed.clear(a_lock())
    leader.poll()
    assert follower.poll().snapshot is False
    assert set(follower.view) == set(host.feed.locks.values())


def test_files_from_before_the_last_start_of_the_machine_are_not_used(host: Host) -> None:
    leader = host.process()
    leader.poll()
    leader.source._stop_leading()
    holder = host.process()
    assert holder.source._try_to_lead()
    later = host.process()
    later.source._boot = "another"
    host.feed.set(a_lock("user:bob"))
    later.poll()
    assert "user:bob" in later.callers


@pytest.mark.parametrize("harm", ["cut", "change", "others", "gone", "words"])
def test_a_damaged_or_unsafe_file_is_not_used(host: Host, harm: str) -> None:
    leader, follower = host.process(), host.process()
    leader.poll()
    news = host.path.with_name("view.news")
    text = news.read_bytes()
    match harm:
        case "cut":
            news.write_bytes(text[:-20])
        case "change":
            news.write_bytes(text.replace(b"view", b"veiw").replace(b"version", b"versiom"))
        case "others":
            news.chmod(0o666)
        case "gone":
            news.unlink()
        case "words":
            news.write_bytes(b"\xff\xfe\n")
    assert follower.poll().waited == 0.0
    assert follower.callers == {"api_key:acme"}
    assert len(host.feed.fetches) == 2
    leader.poll()
    host.now_s += 1
    assert follower.poll().waited == -1


@pytest.mark.parametrize("removed", ["leader", "news", "all"])
def test_a_removed_file_is_written_again_with_the_next_poll(host: Host, removed: str) -> None:
    leader, follower = host.process(), host.process()
    leader.poll()
    follower.poll()
    host.path.with_name(f"view.{removed}").unlink()
    for _ in range(2):
        follower.poll()
        leader.poll()
    assert [process.source.is_leader for process in (leader, follower)].count(True) == 1
    before = len(host.feed.fetches)
    host.now_s += 1
    late = host.process()
    assert late.poll().waited == -1  # read from the file, not fetched
    assert late.callers == {"api_key:acme"}
    assert len(host.feed.fetches) == before
    assert {file.name for file in host.path.parent.iterdir()} == {"view.all", "view.leader", "view.news"}


def test_when_the_disk_becomes_read_only_each_process_fetches_for_itself(host: Host) -> None:
    """From the moment when the files are too old."""
    leader, follower = host.process(), host.process()
    leader.poll()
    follower.poll()
    (
        host.path.parent / f".view.news.{os.getpid()}"
    ).mkdir()  # a folder cannot be replaced by a file, even by root
    host.feed.set(a_lock("user:bob"))
    leader.poll()
    assert leader.callers == {"api_key:acme", "user:bob"}
    host.now_s += OVERDUE_S + 0.1
    leader.poll()
    follower.poll()
    assert follower.callers == {"api_key:acme", "user:bob"}


def test_a_disk_error_is_logged_once_and_each_process_fetches_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(tmp_path / "not there")
    leader, follower = host.process(), host.process()
    with caplog.at_level(logging.WARNING, "gatekeeper"):
        for _ in range(3):
            leader.poll()
            follower.poll()
    assert leader.callers == follower.callers == {"api_key:acme"}
    assert [record.getMessage()[:29] for record in caplog.records] == ["cannot share the poller, each"] * 2


def test_when_the_source_is_unavailable_the_leader_fails_and_the_followers_age(host: Host) -> None:
    leader, follower = host.process(), host.process()
    leader.poll()
    follower.poll()
    host.feed.away = True
    with pytest.raises(SourceError):
        leader.poll()
    host.now_s += 5
    assert follower.poll().waited == -5
    assert follower.callers == {"api_key:acme"}


def test_a_restored_feed_reaches_all_processes(host: Host) -> None:
    leader, follower = host.process(), host.process()
    backup = host.feed.backup()
    host.feed.set(a_lock("user:bob"))
    for process in (leader, follower):
        process.poll()
    host.feed.restore(backup)
    host.feed.set(a_lock("user:eve"))
    for process in (leader, follower):
        process.poll()
        assert process.callers == {"api_key:acme", "user:eve"}


def test_other_users_cannot_read_the_files(host: Host) -> None:
    host.process().poll()
    files = sorted(host.path.parent.iterdir())
    assert [file.name for file in files] == ["view.all", "view.leader", "view.news"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_forked_child_does_not_keep_the_leaders_lock(host: Host) -> None:
    """A child that never polls must not keep others from leading after its parent has ended."""
    leader, follower = host.process(), host.process()
    leader.poll()
    child = os.fork()
    if not child:
        os._exit(0 if not leader.source.is_leader else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert leader.source.is_leader
    follower.poll()
    assert not follower.source.is_leader


def test_followers_read_locks_unchanged(host: Host) -> None:
    lock: Lock = a_lock("user:é\n", detail="line\nbreak", resource="/v1/x", on_stale="allow")
    leader, follower = host.process(), host.process()
    leader.poll()
    follower.poll()
    host.feed.publish(Set(lock))
    leader.poll()
    follower.poll()
    late = host.process()
    late.poll()
    assert lock in set(follower.view)
    assert set(late.view) == set(follower.view)
    assert follower.view.at == Cursor(2, "m2")
