"""One of several processes asks, the others read what it wrote."""

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
    """One of those that share: a source, and the view that is made of it."""

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
    """A machine, its clock and its disk, and the feed somewhere else."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1_000.0
        self.path = folder / "view"
        self.feed = HandFeed(a_lock())
        self.made: list[Process] = []

    def process(self) -> Process:
        self.made.append(Process(self))
        return self.made[-1]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for process in host.made:
        process.source.close()


def test_one_asks_and_the_others_read(host: Host) -> None:
    one, other, third = host.process(), host.process(), host.process()
    one.poll()
    assert [process.poll().at for process in (other, third)] == [host.feed.at] * 2
    assert other.callers == third.callers == {"api_key:acme"}
    host.feed.set(a_lock("user:bob"))
    host.feed.clear(a_lock())
    one.poll()
    update = other.poll()
    assert (update.since, update.snapshot, other.callers) == (1, False, {"user:bob"})
    assert third.poll().changes == update.changes
    assert not other.poll().changes
    assert len(host.feed.asked) == 2


def test_what_is_read_is_as_old_as_the_question_that_was_asked(host: Host) -> None:
    one, other = host.process(), host.process()
    one.poll()
    host.now_s += 7.0
    other.poll()
    assert other.waited == -7.0
    assert one.source.leads
    assert not other.source.leads


def test_when_the_one_who_asks_ends_the_next_look_of_another_takes_over(host: Host) -> None:
    one, other, third = host.process(), host.process(), host.process()
    for process in (one, other, third):
        process.poll()
    one.source.close()
    host.feed.set(a_lock("user:bob"))
    other.poll()
    third.poll()
    assert [process.source.leads for process in (one, other, third)] == [False, True, False]
    assert other.callers == third.callers == {"api_key:acme", "user:bob"}


def test_when_the_one_who_asks_hangs_the_others_ask_for_themselves(host: Host) -> None:
    one, other = host.process(), host.process()
    one.poll()
    other.poll()
    host.feed.set(a_lock("user:bob"))
    host.now_s += OVERDUE_S
    assert "user:bob" not in (other.poll(), other.callers)[1]
    host.now_s += 0.1
    other.poll()
    assert "user:bob" in other.callers
    one.poll()
    assert other.poll().waited == 0.0
    assert not other.source.leads


def test_who_comes_first_while_another_is_asking_asks_too(host: Host) -> None:
    one, other = host.process(), host.process()
    assert one.source._leads()
    other.poll()
    assert other.callers == {"api_key:acme"}


def test_who_missed_more_than_is_kept_reads_the_snapshot_anew(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_poller, "KEPT_CHANGES_MAX", 10)
    one, other, late = host.process(), host.process(), host.process()
    one.poll()
    for n in range(100):
        host.feed.set(a_lock(f"user:{n}"), a_lock(f"api_key:{n % 7}"))
        host.feed.clear(a_lock(f"user:{n - 3}"))
        one.poll()
        if n % 2:
            assert other.poll().at == host.feed.at
        if not n % 33:
            late.poll()
    for process in (other, late):
        process.poll()
        assert set(process.view) == set(host.feed.locks.values())


def test_a_large_change_is_no_hindrance(host: Host) -> None:
    one, other = host.process(), host.process()
    one.poll()
    other.poll()
    host.feed.set(*(a_lock(f"user:{n}") for n in range(2 * shared_poller.KEPT_CHANGES_MAX)))
    one.poll()
    other.poll()
    assert set(other.view) == set(host.feed.locks.values())
    host.feed.clear(a_lock())
    one.poll()
    assert other.poll().snapshot is False
    assert set(other.view) == set(host.feed.locks.values())


def test_news_of_before_this_machine_was_started_is_not_believed(host: Host) -> None:
    one = host.process()
    one.poll()
    one.source._leave()
    holder = host.process()
    assert holder.source._leads()
    later = host.process()
    later.source._boot = "another"
    host.feed.set(a_lock("user:bob"))
    later.poll()
    assert "user:bob" in later.callers


@pytest.mark.parametrize("harm", ["cut", "change", "others", "gone", "words"])
def test_a_file_that_is_not_as_it_was_written_is_not_believed(host: Host, harm: str) -> None:
    one, other = host.process(), host.process()
    one.poll()
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
    assert other.poll().waited == 0.0
    assert other.callers == {"api_key:acme"}
    assert len(host.feed.asked) == 2
    one.poll()
    host.now_s += 1
    assert other.poll().waited == -1


@pytest.mark.parametrize("removed", ["leader", "news", "all"])
def test_a_file_that_was_removed_is_there_again_after_the_next_question(host: Host, removed: str) -> None:
    one, other = host.process(), host.process()
    one.poll()
    other.poll()
    host.path.with_name(f"view.{removed}").unlink()
    for _ in range(2):
        other.poll()
        one.poll()
    assert [process.source.leads for process in (one, other)].count(True) == 1
    before = len(host.feed.asked)
    host.now_s += 1
    late = host.process()
    assert late.poll().waited == -1  # read, not asked for
    assert late.callers == {"api_key:acme"}
    assert len(host.feed.asked) == before
    assert {file.name for file in host.path.parent.iterdir()} == {"view.all", "view.leader", "view.news"}


def test_a_disk_that_cannot_be_written_to_any_more_leaves_each_asking_for_itself(host: Host) -> None:
    """Once what was written is too old; nobody stops learning."""
    one, other = host.process(), host.process()
    one.poll()
    other.poll()
    (host.path.parent / f".view.news.{os.getpid()}").mkdir()  # in the way of writing, even for root
    host.feed.set(a_lock("user:bob"))
    one.poll()
    assert one.callers == {"api_key:acme", "user:bob"}
    host.now_s += OVERDUE_S + 0.1
    one.poll()
    other.poll()
    assert other.callers == {"api_key:acme", "user:bob"}


def test_a_disk_that_fails_is_said_once_and_each_asks_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(tmp_path / "not there")
    one, other = host.process(), host.process()
    with caplog.at_level(logging.WARNING, "gatekeeper"):
        for _ in range(3):
            one.poll()
            other.poll()
    assert one.callers == other.callers == {"api_key:acme"}
    assert [record.getMessage()[:29] for record in caplog.records] == ["cannot share the poller, each"] * 2


def test_a_source_that_is_away_is_away_for_who_asks_and_the_others_grow_old(host: Host) -> None:
    one, other = host.process(), host.process()
    one.poll()
    other.poll()
    host.feed.away = True
    with pytest.raises(SourceError):
        one.poll()
    host.now_s += 5
    assert other.poll().waited == -5
    assert other.callers == {"api_key:acme"}


def test_a_restored_feed_reaches_everybody(host: Host) -> None:
    one, other = host.process(), host.process()
    kept = host.feed.backup()
    host.feed.set(a_lock("user:bob"))
    for process in (one, other):
        process.poll()
    host.feed.restore(kept)
    host.feed.set(a_lock("user:eve"))
    for process in (one, other):
        process.poll()
        assert process.callers == {"api_key:acme", "user:eve"}


def test_nobody_else_may_read_the_files(host: Host) -> None:
    host.process().poll()
    files = sorted(host.path.parent.iterdir())
    assert [file.name for file in files] == ["view.all", "view.leader", "view.news"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_forked_child_does_not_hold_on_to_what_the_parent_holds(host: Host) -> None:
    """A child that never asks must not keep others from taking over when its parent has ended."""
    one, other = host.process(), host.process()
    one.poll()
    child = os.fork()
    if not child:
        os._exit(0 if not one.source.leads else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert one.source.leads
    other.poll()
    assert not other.source.leads


def test_locks_come_through_as_they_are(host: Host) -> None:
    lock: Lock = a_lock("user:é\n", detail="line\nbreak", resource="/v1/x", on_stale="allow")
    one, other = host.process(), host.process()
    one.poll()
    other.poll()
    host.feed.publish(Set(lock))
    one.poll()
    other.poll()
    late = host.process()
    late.poll()
    assert lock in set(other.view)
    assert set(late.view) == set(other.view)
    assert other.view.at == Cursor(2, "m2")
