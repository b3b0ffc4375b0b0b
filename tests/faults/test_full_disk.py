"""A full disk under SQLite: the analyzer reports it, waits, and continues when there is space."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
import pytest
import sqlalchemy as sa

from tests.faults.fleet import Fleet, Member
from tests.faults.test_outages import readyz
from tests.support.servers.child import free_port
from tests.support.waiting import wait_until

PARTITIONS = 2
pytestmark = pytest.mark.slow


@pytest.fixture
def fleet(real_kafka: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    topic = real_kafka.create_topic(partitions=PARTITIONS)
    monkeypatch.setenv("GATELOCK_TEST_PAGES", str(tmp_path / "pages"))
    fleet = Fleet(
        tmp_path,
        f"sqlite:///{tmp_path}/gatelock.db",
        real_kafka.bootstrap,
        topic,
        PARTITIONS,
        http=f"127.0.0.1:{free_port()}",
    )
    yield fleet
    fleet.close()


@contextmanager
def no_page_left(fleet: Fleet, _member: Member) -> Iterator[str]:
    """SQLITE_FULL, as when a write to the disk fails with ENOSPC."""
    with fleet.engine.connect() as db:
        pages = db.execute(sa.text("pragma page_count")).scalar_one()
    file = fleet.folder / "pages"
    file.write_text(str(pages))
    yield "full"
    file.unlink()


@contextmanager
def no_byte_left(_fleet: Fleet, member: Member) -> Iterator[str]:
    """The kernel refuses every write that would make a file longer."""
    process = psutil.Process(member.pid)
    process.rlimit(psutil.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    yield "disk I/O error"
    process.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    "full_disk", [no_page_left, pytest.param(no_byte_left, marks=pytest.mark.deep("another size"))]
)
def test_a_full_disk_delays_counting_and_loses_nothing(
    fleet: Fleet, full_disk: Callable[..., object], random: Random
) -> None:
    member = fleet.join("small_disk")
    traffic = fleet.traffic(random)
    traffic.callers = 100_000  # one row for each: the file must grow
    traffic.start()
    fleet.wait_until_seen(1_000)
    with full_disk(fleet, member) as message:
        wait_until(lambda: (answer := readyz(fleet))[0] == 503 and message in answer[1])
        full = fleet.seen()
        assert full < traffic.written
    wait_until(lambda: readyz(fleet)[0] == 200)
    traffic.stop()
    fleet.wait_until_seen(traffic.expected.records)
    assert fleet.seen() > full
    assert fleet.counts() == traffic.expected.counts
    assert member.poll() is None
