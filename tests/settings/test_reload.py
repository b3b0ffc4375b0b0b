"""The configuration of a running process: when a changed file is read, what is refused, what has to wait."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from textwrap import dedent

import pytest

from analyzer.config.file_watch import FileWatch
from analyzer.config.reload import (
    FAULTS_SHOWN_MAX,
    ConfigurationReader,
    at_next_start,
    plan_while_running,
    reading_again,
)
from analyzer.config.settings import Settings, load
from analyzer.plan.mapping import TextField
from analyzer.plan.policies import Quota
from tests.support.waiting import wait_until

TEXT = """
    [database]
    url = "sqlite:///gatelock.db"
    [[sources]]
    topic  = "log"
    caller = "api_key"
    [sources.fields]
    time    = { path = "ts", unit = "ms" }
    api_key = "key"
    [[policies]]
    name   = "daily"
    limit  = 5
    window = { per = "day" }
"""
Read = Callable[[str], Settings]


class SeenOutcomes:
    """A `ReloadObserver` that keeps what it receives."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def configuration_accepted(self) -> None:
        self.outcomes.append("")

    def configuration_refused(self, why: str) -> None:
        self.outcomes.append(why)


class Running:
    """A file, and the reader of the process that was started with it."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.file.write_text(dedent(text))
        self.load: Callable[[], Settings] = lambda: load(file)
        watch = FileWatch(file)
        self.seen = SeenOutcomes()
        self.reader = ConfigurationReader(watch, load(file), self._load, self.seen)

    def _load(self) -> Settings:
        return self.load()

    def look(self, times: int = 2) -> list[str]:
        """Lets the reader look; returns all outcomes so far."""
        for _ in range(times):
            self.reader.look()
        return self.seen.outcomes

    def taken_limit(self) -> int | None:
        taken = self.reader.take()
        if taken is None:
            return None
        policy = taken.plan().policy("daily")
        assert isinstance(policy, Quota)
        return policy.limit


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path / "gatelock.toml", TEXT)


def changed(limit: int) -> str:
    return dedent(TEXT.replace("limit  = 5", f"limit  = {limit}"))


def replace(file: Path, text: str) -> None:
    """Replaces a file in one step."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)


def test_a_file_that_stays_as_it_is_is_not_read(running: Running) -> None:
    assert running.look(5) == []
    assert running.taken_limit() is None


@pytest.mark.parametrize("write", [replace, Path.write_text])
def test_a_changed_file_is_read_once_when_two_looks_have_seen_the_same(
    running: Running, write: Callable[[Path, str], object]
) -> None:
    write(running.file, changed(7))
    assert running.look(1) == [], "its writer may not be done"
    assert running.look(3) == [""]
    assert running.taken_limit() == 7
    assert running.taken_limit() is None, "it was taken"


def test_a_file_of_the_same_size_and_time_of_modification_is_another_one(running: Running) -> None:
    """`cp --preserve` writes such a file."""
    before = running.file.stat()
    running.file.write_text(changed(9))
    os.utime(running.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert running.file.stat().st_size == before.st_size
    assert running.look() == [""]
    assert running.taken_limit() == 9


def test_a_symbolic_link_that_is_exchanged_is_a_change(tmp_path: Path) -> None:
    """Kubernetes replaces a ConfigMap in this way: the folder of the file is a link that changes."""
    for folder, limit in (("..2026_1", 5), ("..2026_2", 8)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "gatelock.toml").write_text(changed(limit))
    (tmp_path / "..data").symlink_to("..2026_1")
    file = tmp_path / "mounted.toml"
    file.symlink_to("..data/gatelock.toml")
    running = Running(file, changed(5))
    (tmp_path / "..tmp").symlink_to("..2026_2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    assert running.look() == [""]
    assert running.taken_limit() == 8


def test_a_file_that_is_written_in_two_steps_is_read_after_the_second(running: Running) -> None:
    running.file.unlink()
    running.look(1)
    running.file.write_text("")
    running.look(1)
    running.file.write_text(changed(6))
    assert running.look() == [""]
    assert running.taken_limit() == 6


def test_a_file_that_changes_while_it_is_read_is_read_again(running: Running) -> None:
    def load_and_write() -> Settings:
        running.load = lambda: load(running.file)
        try:
            return load(running.file)
        finally:
            replace(running.file, changed(11))

    running.load = load_and_write
    replace(running.file, "half a fi")
    assert running.look(2) == [], "what was read may be a part of it"
    assert running.look(2) == [""]
    assert running.taken_limit() == 11


def test_a_request_reads_at_once_and_also_an_unchanged_file(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running.reader.look(is_requested=True)
    replace(running.file, changed(7))
    running.reader.look(is_requested=True)
    assert running.seen.outcomes == ["", ""]
    assert running.taken_limit() == 7
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "configuration read again: nothing has changed",
        "configuration read again: it has changed",
    ]


def test_a_bad_file_is_refused_with_the_sentences_of_check_until_a_good_one_is_read(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    replace(
        running.file,
        changed(7).replace('per = "day"', 'per = "dya"').replace("[database]", "[database]\nx = 1"),
    )
    running.look(5)
    [why] = running.seen.outcomes
    assert f"{running.file}:3: [database] x: " in why
    assert f'{running.file}:14: [[policies]] "daily", window.per: ' in why
    assert '; use "minute", "hour", "day"' in why
    assert "\n" not in why
    assert running.reader.refusal == why
    assert running.taken_limit() is None, "nothing of it is in force"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"this configuration is refused, and the one before stays in force: {why}"
    ]
    replace(running.file, changed(5))
    assert running.look() == [why, ""]
    assert running.reader.refusal == ""
    assert running.taken_limit() is None, "it is the one in force"


def test_of_many_faults_some_are_named(running: Running) -> None:
    replace(running.file, changed(7) + "".join(f"[table{number}]\n" for number in range(9)))
    [why] = running.look()
    assert why.count("gatelock.toml:") == FAULTS_SHOWN_MAX
    assert why.endswith("And 4 more: run `gatelock check`")


def test_a_file_that_is_gone_is_refused(running: Running) -> None:
    running.file.unlink()
    [why] = running.look()
    assert why.startswith(f"{running.file}: the file: cannot be read: No such file or directory")
    running.file.write_text(changed(5))
    assert running.look() == [why, ""]


def test_a_bug_in_reading_refuses_the_file_and_ends_nothing(running: Running) -> None:
    def fail() -> Settings:
        raise RuntimeError("broken")

    running.load = fail
    replace(running.file, changed(7))
    assert running.look(3) == ["internal error: RuntimeError('broken')"]


def test_several_changes_before_the_loop_takes_them_are_one(running: Running) -> None:
    for limit in (6, 7):
        replace(running.file, changed(limit))
        running.look()
    assert running.taken_limit() == 7
    assert running.taken_limit() is None


def test_the_thread_reads_on_request_and_ends(running: Running) -> None:
    requests: SimpleQueue[bool] = SimpleQueue()
    requests.put(True)  # before the thread has begun
    with reading_again(running.reader, requests):
        wait_until(lambda: running.seen.outcomes == [""], 30)
        replace(running.file, changed(7))
        wait_until(lambda: running.seen.outcomes == ["", ""], 30)  # without a request
    replace(running.file, changed(8))
    requests.put(True)
    assert running.seen.outcomes == ["", ""]


AT_START = """
    [kafka]
    group_id = "other"
    [analyzer]
    http = "off"
    flush_every = "1s"
    digest_secret = "0123456789abcdef"
"""


def test_settings_that_wait_for_the_next_start_are_named(
    running: Running, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    replace(running.file, changed(7) + dedent(AT_START))
    running.look()
    assert (
        "changes of [kafka], flush_every of [analyzer], http of [analyzer] take effect at the next start"
        in caplog.text
    )
    assert running.taken_limit() == 7, "the rest is applied"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("limit  = 5", "limit  = 6", []),
        ('api_key = "key"', 'api_key = "k"', []),
        ('caller = "api_key"', 'caller = "api_key"\n    groupings = ["everyone"]', []),
        ("sqlite:///gatelock.db", "sqlite:///other.db", ["[database]"]),
        ('topic  = "log"', 'topic  = "log"\n    start = "latest"', ['start of [[sources]] "log"']),
        ('topic  = "log"', 'topic  = "lag"\n    name = "log"', ['[[sources]] "log"']),
        ('topic  = "log"', 'topic  = "lag"', ['[[sources]] "lag"', '[[sources]] "log"']),
    ],
)
def test_settings_change_at_once_or_are_named(read: Read, old: str, new: str, named: list[str]) -> None:
    assert old in TEXT
    assert at_next_start(read(TEXT), read(TEXT.replace(old, new))) == named


def test_a_source_keeps_its_mapping_while_another_log_waits_for_the_next_start(read: Read) -> None:
    """The new mapping belongs to the new topic: it would reject the records of the old one."""
    before = read(TEXT)
    after = read(TEXT.replace('topic  = "log"', 'topic = "lag"\nname = "log"').replace('"key"', '"k"'))
    other = read(TEXT.replace('topic  = "log"', 'topic = "lag"').replace("limit  = 5", "limit  = 6"))
    known = before.plan().sources
    assert plan_while_running(before, after, known).parts == before.plan().parts
    plan = plan_while_running(before, other, known)
    assert plan.sources == known
    assert isinstance(policy := plan.policy("daily"), Quota)
    assert policy.limit == 6
    corrected = plan_while_running(before, read(TEXT.replace('"key"', '"k"')), known)
    assert corrected.sources["log"].fields["api_key"] == TextField(("k",))


def test_every_setting_can_change_or_is_named(read: Read) -> None:
    """A table that is added to the configuration has to be in one of the lists."""
    named = {"database", "kafka", "billing", "retention", "analyzer", "sources", "alerts", "alerting"}
    of_the_plan = {"privacy", "groupings", "meters", "policies", "overrides", "exempt", "sources"}
    at_once = {"delays"}
    assert set(Settings.model_fields) == named | of_the_plan | at_once
