"""The sources that every contract is tried on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.desks import (
    KINDS,
    Desk,
    FileDesk,
    FixedDesk,
    HandDesk,
    HttpDesk,
    SharedDesk,
    SqlDesk,
    Switch,
)
from tests.support.serving import feed_server


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Switch, str]]:
    """One server for all stories: it must make nothing of what it heard of another feed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analyzer.web.feed_cache.REFRESH_EVERY_S", 0.0)  # stories do not wait for each other
        with feed_server(switch := Switch()) as url:
            yield switch, url


@pytest.fixture
def sqlite_desk(sqlite_template: Path, tmp_path: Path) -> Iterator[SqlDesk]:
    shutil.copyfile(sqlite_template, tmp_path / "gatelock.db")
    desk = SqlDesk(f"sqlite:///{tmp_path}/gatelock.db")
    yield desk
    desk.close()


@pytest.fixture
def postgresql_desk(postgres: Any, postgres_template: str) -> Iterator[SqlDesk]:
    url = postgres.new_database(template=postgres_template)
    desk = SqlDesk(url)
    yield desk
    desk.close()
    postgres.drop(url)


def chosen(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if kind.startswith("http-"):
        desk = HttpDesk(
            chosen(kind.removeprefix("http-"), request, tmp_path), request.getfixturevalue("served")
        )
        request.addfinalizer(desk.source.close)
        return desk
    match kind:
        case "by hand":
            return HandDesk()
        case "fixed":
            return FixedDesk()
        case "file":
            return FileDesk(tmp_path / "locks.json")
        case "shared":
            desk = SharedDesk(tmp_path)
            request.addfinalizer(desk.first.close)
            return desk
    return request.getfixturevalue(f"{kind}_desk")


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return chosen(request.param, request, tmp_path)


@pytest.fixture(params=[kind for kind in KINDS if "sql" in kind])
def sql_desk(request: pytest.FixtureRequest, tmp_path: Path) -> SqlDesk:
    return chosen(request.param, request, tmp_path)
