"""A process of `gatelock run` whose configuration changes: what comes in force, and what is refused."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from tests.cli.test_run import CONFIGURATION, Analyzer, Gatelock, line, usage_by_day, wait_for

RELOADED = "gatelock_config_last_reload_successful"
RELOADED_AT = "gatelock_config_last_reload_success_timestamp_seconds"


@pytest.fixture
def text(database_url: str) -> str:
    """The configuration at the start."""
    return CONFIGURATION.format(database=database_url)


@pytest.fixture
def file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "gatelock.toml"
    file.write_text(text)
    return file


@pytest.fixture
def analyzer(file: Path, tmp_path: Path) -> Iterator[Analyzer]:
    (tmp_path / "access.log").write_text(line("192.0.2.1", 20) * 2)
    analyzer = Analyzer(tmp_path / "analyzer.log")
    try:
        analyzer.ready()
        yield analyzer
    finally:
        analyzer.child.kill()
        analyzer.child.wait()


def replace(file: Path, text: str) -> None:
    """Replaces a file as editors and deployments do, in one step."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)


def messages(analyzer: Analyzer, words: str) -> list[str]:
    return [entry["message"] for entry in analyzer.logged() if words in entry["message"]]


def logged(analyzer: Analyzer, words: str) -> str:
    """Waits for the first message with these words."""
    found: list[str] = wait_for(lambda: messages(analyzer, words))
    return found[0]


def add(tmp_path: Path, address: str, times: int = 1) -> None:
    with (tmp_path / "access.log").open("a") as log:
        log.write(line(address, 20) * times)


def refusals(gatelock: Gatelock, file: Path) -> list[str]:
    """Returns the findings of `gatelock doctor` about configurations that are refused."""
    result = gatelock("--config", str(file), "doctor", "--json")
    findings: list[dict[str, Any]] = [json.loads(row) for row in result.output.splitlines()]
    return [
        found["what"] for found in findings if (found["check"], found["state"]) == ("configuration", "wrong")
    ]


def test_an_analyzer_that_reads_its_file_again_stores_what_it_measures(
    analyzer: Analyzer, database_url: str
) -> None:
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 2)
    engine = open_engine(database_url)

    def measured_s() -> float | None:
        with engine.connect() as db:
            stored = db.execute(sa.text("select measured from analyzers")).scalar_one()
        return json.loads(stored or "{}").get("flush_s")

    try:
        assert wait_for(measured_s) > 0
    finally:
        engine.dispose()


def test_a_changed_limit_comes_in_force_without_a_restart(
    tmp_path: Path, analyzer: Analyzer, file: Path, text: str, gatelock: Gatelock
) -> None:
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 2)
    replace(file, text.replace("limit  = 3", "limit  = 4"))
    assert logged(analyzer, "configuration read again").endswith("it has changed")
    assert "policy ever: limit 3 to 4" in logged(analyzer, "this configuration comes in force")
    add(tmp_path, "192.0.2.1")
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 3)
    assert analyzer.metric("gatelock_lock_changes_total") == 0, "four are allowed"
    add(tmp_path, "192.0.2.1")
    wait_for(lambda: analyzer.metric("gatelock_lock_changes_total") == 1)
    assert analyzer.stop() == 0
    assert usage_by_day(gatelock) == {"address:192.0.2.1 2026-11-20": (4, 0)}
    assert gatelock("billing", "audit").exit_code == 0


def test_a_signal_reads_a_file_that_is_written_in_place(
    tmp_path: Path, analyzer: Analyzer, file: Path, text: str
) -> None:
    file.write_text(text.replace("limit  = 3", "limit  = 1"))
    analyzer.child.send_signal(signal.SIGHUP)
    logged(analyzer, "this configuration comes in force")
    add(tmp_path, "192.0.2.9")
    wait_for(lambda: analyzer.metric("gatelock_lock_changes_total") >= 1)
    analyzer.child.send_signal(signal.SIGHUP)
    logged(analyzer, "configuration read again: nothing has changed")
    assert analyzer.stop() == 0


def test_a_bad_file_is_refused_whole_until_a_good_one_is_read(
    tmp_path: Path, analyzer: Analyzer, file: Path, text: str, gatelock: Gatelock
) -> None:
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 2)
    began_s = analyzer.metric(RELOADED_AT)
    assert analyzer.metric(RELOADED) == 1
    assert abs(time.time() - began_s) < 600
    bad = text.replace("limit  = 3", "limit  = 1").replace('per = "month"', 'per = "mnth"')
    replace(file, bad)
    why = logged(analyzer, "this configuration is refused, and the one before stays in force")
    checked = "; ".join(part.strip() for part in gatelock("check").output.splitlines()[:2])
    assert why.endswith(checked)
    assert 'window.per: "mnth"' in checked
    wait_for(lambda: analyzer.metric(RELOADED) == 0)
    assert analyzer.metric(RELOADED_AT) == began_s
    body = analyzer.ready()  # it is ready: it counts
    assert body["ready"]
    wait_for(lambda: any(checked in signal["what"] for signal in analyzer.ready()["signals"]))
    add(tmp_path, "192.0.2.1", 2)
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 4)
    wait_for(lambda: analyzer.metric("gatelock_lock_changes_total") == 1)
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(text)
    [found] = wait_for(lambda: refusals(gatelock, elsewhere))
    assert found.startswith("the changed configuration of here is refused, the one before is in force: ")
    assert checked in found

    replace(file, text.replace("limit  = 3", "limit  = 30"))
    wait_for(lambda: analyzer.metric(RELOADED) == 1)
    assert analyzer.metric(RELOADED_AT) > began_s
    wait_for(lambda: not any(checked in signal["what"] for signal in analyzer.ready()["signals"]))
    wait_for(lambda: not refusals(gatelock, elsewhere))
    logged(analyzer, "this configuration comes in force")
    add(tmp_path, "192.0.2.2")
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 5)
    assert analyzer.stop() == 0
    assert usage_by_day(gatelock) == {
        "address:192.0.2.1 2026-11-20": (4, 0),
        "address:192.0.2.2 2026-11-20": (1, 0),
    }


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_corrected_mapping_resumes_a_partition_that_rejected_records_have_stopped(
    tmp_path: Path, analyzer: Analyzer, file: Path, text: str, gatelock: Gatelock
) -> None:
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 2)
    as_json = text.replace('"combined"', '"json"')
    as_json = as_json.replace('caller  = "address"', 'caller  = "address"\n    stop_after_rejected = 3')
    as_json += '\n    [sources.fields]\n    address = "address"\n    status = "status"\n'
    as_json += '    time = { path = "ts", unit = "s" }\n'
    table, fields = as_json.index("    [[policies]]"), as_json.index("    [sources.fields]")
    replace(file, as_json[:table] + as_json[fields:] + as_json[table:fields])
    logged(analyzer, "this configuration comes in force")
    add(tmp_path, "192.0.2.1", 5)
    wait_for(lambda: analyzer.metric("gatelock_stopped_partitions{") == 1)
    assert gatelock("upkeep", "sources", "list", "--gaps").exit_code == 1
    replace(file, text)
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 7)
    assert gatelock("upkeep", "sources", "list", "--gaps").exit_code == 0
    assert analyzer.stop() == 0
    assert usage_by_day(gatelock) == {"address:192.0.2.1 2026-11-20": (7, 0)}
