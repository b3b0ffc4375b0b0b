"""Faults of a configuration: all at once, with line and cure, and never a crash."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.config.diagnostics.faults import ConfigInvalid, KeyFault
from analyzer.config.settings import FaultsFound, Settings, load

FILES = Path(__file__).parent / "files"


@pytest.mark.parametrize("name", sorted(path.stem for path in FILES.glob("*.toml")))
def test_all_faults_are_reported_at_once_with_line_and_cure(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each .toml file has its expected messages in a .txt file; a new pair of files is a new test."""
    monkeypatch.chdir(FILES)
    with pytest.raises(ConfigInvalid) as raised:
        load(Path(f"{name}.toml"))
    assert str(raised.value) + "\n" == (FILES / f"{name}.txt").read_text()


def test_no_fault_repeats_a_secret() -> None:
    for messages in FILES.glob("*.txt"):
        assert "s3cret" not in messages.read_text()


def test_a_file_that_is_not_utf8_is_a_fault_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "gatelock.toml"
    file.write_bytes(b"[kafka]\ngroup_id = '\xff'\n")
    with pytest.raises(ConfigInvalid, match=r"gatelock\.toml:2: the file: is not UTF-8"):
        load(file)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_file_above_1_mb_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "gatelock.toml"
    file.write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(ConfigInvalid, match="larger than 1 MB"):
        load(file)


def faults_of(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "gatelock.toml").write_text(text)
    with pytest.raises(ConfigInvalid) as raised:
        load(tmp_path / "gatelock.toml")
    return [f"{fault.where}: {fault.what}" for fault in raised.value.faults]


SOURCE = '[[sources]]\nfile = "access.log"\nformat = "combined"\n'
POLICY = '[[policies]]\nname = "daily"\nkind = "quota"\nlimit = 0\nwindow = { per = "day" }\n'


def test_a_wrong_format_is_one_fault(tmp_path: Path) -> None:
    """Checks of its fields would use those of another format."""
    text = SOURCE.replace("combined", "logfmt")
    assert faults_of(tmp_path, text) == [
        '[[sources]] "access.log", format: "logfmt" is not one of the known values'
    ]


def test_a_misspelled_kind_hides_no_other_fault(tmp_path: Path) -> None:
    misspelled = faults_of(tmp_path, POLICY.replace("quota", "quote"))
    assert [fault.partition(", ")[2].partition(":")[0] for fault in misspelled] == ["kind", "limit"]


def test_an_unknown_key_of_a_meter_is_one_fault(tmp_path: Path) -> None:
    found = faults_of(tmp_path, SOURCE + '[[meters]]\nname = "size"\naverage = "bytes"\n')
    assert found == ['[[meters]] "size", average: is not a known key']


def test_a_topic_that_is_read_twice_is_one_fault(tmp_path: Path) -> None:
    found = faults_of(tmp_path, SOURCE + SOURCE)
    assert found == [
        '[[sources]] "access.log", file: "access.log" is already used by another [[sources]] table'
    ]


def test_a_list_from_the_environment_has_the_cure_for_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gatelock.toml").write_text("sources = 3\n")
    with pytest.raises(ConfigInvalid, match=r"begin each table with a line \[\[sources\]\]"):
        load(tmp_path / "gatelock.toml")
    monkeypatch.setenv("GATELOCK_SOURCES", "3")
    with pytest.raises(ConfigInvalid, match=r"write a JSON list of objects"):
        load(None)


def test_control_characters_in_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "gatelock.toml"
    file.write_text('[[policies]]\nname = "\\u001b[2J\\u202e"\nlimit = 1\nwindow = { per = "day" }\n')
    with pytest.raises(ConfigInvalid) as raised:
        load(file)
    assert str(raised.value).replace("\n", "").isprintable()


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["day", "status"]),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
VALID = tomllib.loads("""
[database]
url = "sqlite:///gatelock.db"
[kafka]
options = { fetch_max_wait_ms = 100 }
[analyzer]
flush_every = 1
[[sources]]
topic   = "access-log"
caller  = ["api_key"]
deny_if = { status = 429 }
groupings = ["caller+resource"]
[sources.fields]
time     = { path = "ts", unit = "s" }
api_key  = "key"
address  = { path = "ip", prefix6 = 64 }
resource = { path = "path", routes = ["/v1/items/{id}"], else = "other" }
status   = "status"
spent    = { path = "spent", kind = "decimal", default = 1 }
[[meters]]
name  = "spent"
sum   = "spent"
where = { status = "500-599" }
[[policies]]
name   = "daily"
limit  = 10
window = { per = "day", zone = "Europe/Berlin" }
""")


def paths_in(found: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every table, list and value in `found`."""
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [at, *(path for key, item in items for path in paths_in(item, (*at, key)))]


def put(found: Any, at: tuple[str | int, ...], value: Any) -> Any:
    """A copy of `found` with `value` at this path."""
    if not at:
        return value
    copy: Any = dict(found) if isinstance(found, dict) else list(found)
    copy[at[0]] = put(copy[at[0]], at[1:], value)
    return copy


@given(st.lists(st.tuples(st.sampled_from(paths_in(VALID)[1:]), ANYTHING), min_size=1, max_size=3))
def test_a_wrong_value_anywhere_is_a_fault_and_never_a_crash(
    errors: list[tuple[tuple[str | int, ...], Any]],
) -> None:
    document = VALID
    for at, value in errors:
        try:
            document = put(document, at, value)
        except (TypeError, KeyError, IndexError):  # an earlier error removed this path
            continue
    settings, faults = None, list[KeyFault]()
    try:
        settings = Settings(**document)
    except FaultsFound as raised:
        faults = raised.faults
    assert (settings is None) == bool(faults)
    if settings is not None:
        assert settings.plan().meters
        assert settings.mappings().keys() == {source.name for source in settings.sources}
