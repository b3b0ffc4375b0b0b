"""The sources that every contract test runs with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.lock_publishers import (
    KINDS,
    FilePublisher,
    FixedPublisher,
    HttpPublisher,
    LockPublisher,
    MemoryPublisher,
    SharedPublisher,
    SqlPublisher,
    Switch,
)
from tests.support.serving import feed_server


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Switch, str]]:
    """One server for all tests, which must not mix up the feeds of different tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "analyzer.faces.feed.feed_cache.REFRESH_EVERY_S", 0.0
        )  # a test does not wait for the next refresh
        with feed_server(switch := Switch()) as url:
            yield switch, url


@pytest.fixture
def sqlite_publisher(sqlite_template: Path, tmp_path: Path) -> Iterator[SqlPublisher]:
    shutil.copyfile(sqlite_template, tmp_path / "gatelock.db")
    publisher = SqlPublisher(f"sqlite:///{tmp_path}/gatelock.db")
    yield publisher
    publisher.close()


@pytest.fixture
def postgresql_publisher(postgres: Any, postgres_template: str) -> Iterator[SqlPublisher]:
    url = postgres.new_database(template=postgres_template)
    publisher = SqlPublisher(url)
    yield publisher
    publisher.close()
    postgres.drop(url)


def publisher_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if kind.startswith("http-"):
        publisher = HttpPublisher(
            publisher_of(kind.removeprefix("http-"), request, tmp_path), request.getfixturevalue("served")
        )
        request.addfinalizer(publisher.source.close)
        return publisher
    match kind:
        case "memory":
            return MemoryPublisher()
        case "fixed":
            return FixedPublisher()
        case "file":
            return FilePublisher(tmp_path / "locks.json")
        case "shared":
            publisher = SharedPublisher(tmp_path)
            request.addfinalizer(publisher.first.close)
            return publisher
    return request.getfixturevalue(f"{kind}_publisher")


@pytest.fixture(params=KINDS)
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> LockPublisher:
    return publisher_of(request.param, request, tmp_path)


@pytest.fixture(params=[kind for kind in KINDS if "sql" in kind])
def sql_publisher(request: pytest.FixtureRequest, tmp_path: Path) -> SqlPublisher:
    return publisher_of(request.param, request, tmp_path)
