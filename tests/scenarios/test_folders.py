"""Scenario folders: each is played, and played again without its rule; see folders/README.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.depth import IS_DEEP
from tests.support.scenario_folders import Contrast, Folder, differences

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres

FOLDERS = Path(__file__).parent / "folders"
NAMES = sorted(path.name for path in FOLDERS.iterdir() if path.is_dir())
# Zones, late records, shared totals, verdicts and changes of the plan are SQL, too. `make test` has two.
ON_POSTGRESQL = (
    "day-of-25-hours",
    "denied-requests",
    "clock-ahead",
    "limit-changed",
    "tenant-of-many-callers",
)
WEEKS = "several-times-the-usual"  # in `make deep` alone
# Played to their ends in `make deep` alone. Their contrasts, which end soon, run in `make test`, as do other
# tests of an overload, of a backlog and of failed logins.
LONG = (WEEKS, "credential-stuffing", "overload-of-a-route", "surge-behind-a-backlog")
# Their stories are played in `make test`; their contrasts take long to differ, and run in `make deep` alone.
SLOW_TO_DIFFER = (
    *("loud-address-of-a-network", "share-released", "surge-in-any-minute", "surge-that-continues"),
    *("tenant-of-many-callers", "thresholds-of-a-rolling-quota"),
)
CONTRASTS = 1  # of each other folder in `make test`


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.deep("long")] if name in LONG else []) for name in NAMES],
)
def test_the_locks_and_answers_are_those_that_the_folder_expects(
    name: str, new_sqlite_url: Callable[[], str]
) -> None:
    assert differences(Folder.read(FOLDERS / name), new_sqlite_url()) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.deep("long")] if name in (WEEKS, *SLOW_TO_DIFFER) else [])
        for name in NAMES
    ],
)
def test_without_its_rule_the_folder_fails(name: str, new_sqlite_url: Callable[[], str]) -> None:
    folder = Folder.read(FOLDERS / name)
    assert folder.expected.contrast, "the folder names no change that must be noticed"
    if IS_DEEP and folder.expected.locks:  # no policy has no lock: any contrast says more
        found = differences(folder, new_sqlite_url(), without_policies=True, must_fail=True)
        assert found, "without its policies"
    for contrast in folder.expected.contrast[: None if IS_DEEP else CONTRASTS]:
        assert differences(folder.changed(contrast), new_sqlite_url(), must_fail=True), contrast.why


@pytest.mark.parametrize("name", ["clock-ahead", "minute-per-caller", "surge-escalates"])
def test_a_right_folder_is_played_to_its_end(name: str, new_sqlite_url: Callable[[], str]) -> None:
    assert differences(Folder.read(FOLDERS / name), new_sqlite_url(), must_fail=True) == []


@pytest.mark.parametrize(
    "name",
    [
        *ON_POSTGRESQL[:2],
        *(pytest.param(name, marks=pytest.mark.deep("the other database")) for name in ON_POSTGRESQL[2:]),
    ],
)
def test_postgresql_gives_the_same(name: str, postgres: Postgres, postgres_template: str) -> None:
    url = postgres.new_database(template=postgres_template)
    assert differences(Folder.read(FOLDERS / name), url) == []
    postgres.drop(url)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS / "minute-per-caller", tmp_path / "empty")
    (folder / "requests.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"empty/requests.jsonl is missing or empty"):
        Folder.read(folder)


def test_a_contrast_that_changes_nothing_is_an_error() -> None:
    folder = Folder.read(FOLDERS / "minute-per-caller")
    contrast = Contrast(why="", file="policies.toml", old="limit = 6", new="limit = 7")
    with pytest.raises(ValueError, match="does not contain 'limit = 6'"):
        folder.changed(contrast)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('12:00:14Z"', '12:00:20Z"', "there is no lock of burst on caller api_key:acme"),
        ('"locks": [', '"locks": [], "ended": [', "there must be no lock of burst on caller api_key:acme"),
        ('"key": "api_key:ann"', '"key": "api_key:bob"', "there are no requests of api_key:bob"),
        ('"5 requests per minute', '"6 requests per minute', "detail is '5 requests per minute"),
        ('"never"', '"rejected": {"past": 1}, "never"', "rejected records are {}"),
        ('"refused_by": null', '"refused_by": "burst"', "refused_by is None, not 'burst'"),
    ],
)
def test_each_kind_of_difference_is_found(
    old: str, new: str, found: str, new_sqlite_url: Callable[[], str]
) -> None:
    folder = Folder.read(FOLDERS / "minute-per-caller")
    before = folder.files["expected.json"]
    assert old in before
    expected = json.loads(before.replace(old, new))
    expected.pop("ended", None)
    changed = Folder({**folder.files, "expected.json": json.dumps(expected)})
    assert found in "\n".join(differences(changed, new_sqlite_url()))
