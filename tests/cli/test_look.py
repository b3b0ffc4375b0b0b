"""`gatelock look`: what a first reader of a log sees, and the problems that other files have."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from errno import EACCES
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.house.reading import ROOT
from tests.support.gatelock_processes import GatelockProcess
from tests.support.waiting import wait_until

LOG = ROOT / "tests" / "data" / "apache_combined_10k.log.gz"
LINE = '192.0.2.7 - - [10/Oct/2025:13:55:{:02} +0000] "GET /v1/items/{} HTTP/1.1" 200 5 "-" "curl"\n'
Gatelock = Callable[..., Any]


def looked(gatelock: Gatelock, *arguments: str) -> dict[str, Any]:
    result = gatelock("look", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def flood(requests: int, address: str = "203.0.113.9") -> str:
    """Requests of one address within a minute, between those of a hundred others."""
    lines = [LINE.format(n * 59 // requests, n).replace("192.0.2.7", address) for n in range(requests)]
    lines += [LINE.format(n * 59 // 100, n).replace("192.0.2.7", f"198.51.100.{n}") for n in range(100)]
    return "".join(sorted(lines, key=lambda line: line.partition("[")[2]))


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text(flood(300))
    return path


def test_a_real_log_has_the_totals_of_a_recount(gatelock: Gatelock) -> None:
    found = looked(gatelock, str(LOG), "--top", "1000")
    lines = gzip.decompress(LOG.read_bytes()).decode(errors="replace").splitlines()
    addresses = Counter(f"address:{line.split(' ')[0]}" for line in lines)
    assert (found["requests"], found["series"]) == (10_000, len(addresses))
    assert {one["key"]: one["requests"] for one in found["top"]} == dict(
        sorted(addresses.items(), key=lambda item: (-item[1], item[0]))[:1000]
    )
    statuses = Counter(line.split('" ')[1].split(" ")[0][0] for line in lines)
    assert (found["client_errors"], found["server_errors"]) == (statuses["4"], statuses["5"])
    assert sum(hour["requests"] for hour in found["hours"]) == 10_000
    assert found["files"][0]["unread"] == {}


@pytest.mark.parametrize("columns", [80, 120])
def test_the_screen_fits_its_columns(
    gatelock: Gatelock, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for by in ("caller", "caller+resource", "address/24", "resource"):
        result = gatelock("look", str(LOG), "--by", by, "--limit", "40")
        lines = result.stdout.splitlines()[1:]  # the first begins with the name of the file
        assert max(map(len, lines)) <= columns
        assert "At 40 a minute you would have locked" in result.stdout
    assert "…" in result.stdout or columns > 80


def test_a_caller_that_stands_out_is_found_and_locked(gatelock: Gatelock, access_log: Path) -> None:
    found = looked(gatelock, str(access_log))["rehearsal"]
    assert found["suggested"]
    assert 1 < found["limit"] <= 300
    (locked,) = found["locked"]
    assert locked["key"] == "address:203.0.113.9"
    text = " ".join(gatelock("look", str(access_log)).stdout.split())
    assert "you would have locked this one, once, for 10 min in all, with" in text
    assert "and no other caller. The limit is a suggestion" in text


def test_a_limit_locks_the_addresses_that_reach_it_in_some_minute(gatelock: Gatelock) -> None:
    """The addresses in docs/policies.md come from a recount in whole minutes."""
    (found,) = [looked(gatelock, str(LOG), "--limit", "40", "--by", "address")["rehearsal"]]
    page = (ROOT / "docs" / "policies.md").read_text()
    named = page.partition("it finds six:")[2].partition("A surge with")[0].split()[1::2]
    assert {one["key"] for one in found["locked"]} == set(named)
    assert found["locked_s"] == 600 * found["locks"]


def test_a_limit_that_locks_more_than_a_brake_allows_says_so(gatelock: Gatelock, tmp_path: Path) -> None:
    lines = [LINE.format(5, n).replace("192.0.2.7", f"10.0.{n // 250}.{n % 250}") for n in range(1_001)]
    (tmp_path / "access.log").write_text("".join(lines * 5))
    sentence = " ".join(gatelock("look", "access.log", "--limit", "5").stdout.split())
    assert "And the brake would have put surge in shadow at 2025-10-10T13:55:09Z" in sentence
    found = looked(gatelock, "access.log", "--limit", "5")["rehearsal"]
    assert (found["series"], found["braked_s"]) == (1_001, 1_760_104_509)
    (tmp_path / "access.log").write_text("".join(lines[1:] * 5))
    assert looked(gatelock, "access.log", "--limit", "5")["rehearsal"]["braked_s"] is None


def test_without_a_caller_that_stands_out_none_is_locked(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text("".join(LINE.format(n, n) for n in range(60)))
    found = looked(gatelock, "access.log")["rehearsal"]
    assert (found["locks"], found["suggested"]) == (0, True)
    text = " ".join(gatelock("look", "access.log").stdout.split())
    assert "no caller: none stands out, the busiest had 60" in text


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress, zstandard.compress])
def test_files_of_every_compression_are_read_under_any_name(
    gatelock: Gatelock, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    text = flood(20).encode()
    (tmp_path / "log").write_bytes(pack(text[:5000]) + pack(text[5000:]))
    assert looked(gatelock, "log")["requests"] == 120


def test_several_files_are_one_log_in_any_order(gatelock: Gatelock, access_log: Path, tmp_path: Path) -> None:
    lines = access_log.read_text().splitlines(keepends=True)
    (tmp_path / "access.log.1").write_text("".join(lines[:150]))
    (tmp_path / "access.log.2.gz").write_bytes(gzip.compress("".join(lines[150:]).encode()))
    whole = looked(gatelock, "access.log", "--limit", "100")
    parts = looked(gatelock, "access.log.2.gz", "access.log.1", "--limit", "100")
    assert [one["lines"] for one in parts["files"]] == [250, 150]
    assert {**parts, "files": 0} == {**whole, "files": 0}


def test_standard_input_is_read(process: Gatelock, access_log: Path) -> None:
    with access_log.open("rb") as stream:
        result = process("look", "-", "--json", stdin=stream)
    assert json.loads(result.stdout)["requests"] == 400
    assert json.loads(result.stdout)["files"][0]["file"] == "standard input"


def test_each_grouping_counts_by_its_key(gatelock: Gatelock, tmp_path: Path) -> None:
    line = {"ts": 1_763_596_800, "ip": "203.0.113.7", "org": "shop", "path": "/v1/items/3", "api_key": "acme"}
    (tmp_path / "requests.log").write_text(f"{json.dumps(line)}\n" * 3)
    keys = {
        by: next((one["key"], one["resource"]) for one in looked(gatelock, "requests.log", "--by", by)["top"])
        for by in ("caller", "address", "address/24", "resource", "tenant", "caller+resource", "everyone")
    }
    assert keys == {
        "caller": ("api_key:acme", ""),
        "address": ("203.0.113.7", ""),
        "address/24": ("203.0.113.0/24", ""),
        "resource": ("/v1/items/{id}", ""),
        "tenant": ("shop", ""),
        "caller+resource": ("api_key:acme", "/v1/items/{id}"),
        "everyone": ("", ""),
    }


def test_lines_that_are_not_read_are_counted_by_reason(gatelock: Gatelock, tmp_path: Path) -> None:
    good = LINE.format(1, 1)
    wrong = good.replace("10/Oct/2025", "99/Oct/2025")
    (tmp_path / "access.log").write_text(good * 5 + "garbage\n" + good + wrong + "more\n")
    (file,) = looked(gatelock, "access.log")["files"]
    assert file["unread"] == {"bad-line": 2, "bad-time": 1}
    assert [(one["line"], one["sample"]) for one in file["first_unread"]] == [
        (6, "garbage"),
        (8, wrong.strip()),
    ]
    result = gatelock("look", "access.log")
    assert "access.log: 3 lines of 9 not read" in result.stderr
    assert "the first is line 6: garbage" in result.stderr


def test_a_log_with_one_line_is_a_log(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(LINE.format(1, 1).rstrip("\n"))
    result = gatelock("look", "access.log")
    assert result.exit_code == 0
    assert "1 request of 1 caller in 5 s" in result.stdout


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_file_that_was_cut_short_is_read_up_to_there(
    gatelock: Gatelock, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    chance = random.Random(3)
    # Paths that do not compress, so that several blocks are complete.
    lines = [LINE.format(n % 60, chance.randbytes(64).hex()) for n in range(20_000)]
    packed = pack("".join(lines).encode())
    (tmp_path / "access.log.gz").write_bytes(packed[: len(packed) * 2 // 3])
    result = gatelock("look", "access.log.gz", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert 5_000 < found["requests"] < 20_000
    assert "the rest cannot be read: the compressed data end too early" in found["files"][0]["problem"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\x7fELF\x00\x01\x02\n\x00", "is binary, not a log of lines"),
        (b"hello\nworld\n", "has no format that is known"),
        (b'{"level": "info"}\n', "no field looks like the time of a request"),
    ],
)
def test_a_file_without_requests_says_why_and_exits_with_1(
    gatelock: Gatelock, tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "file").write_bytes(content)
    result = gatelock("look", "file")
    assert result.exit_code == 1
    assert f"file: {problem}" in result.stderr
    assert json.loads(gatelock("look", "file", "--json").stdout)["requests"] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.log"], "missing.log: No such file or directory"),
        (["."], ". is a directory; name the logs in it: gatelock look ./*.log"),
        (["access.log", "--by", "nonsense"], '--by nonsense: "nonsense" is not a grouping'),
        (
            ["access.log", "--by", "tenant"],
            "--by tenant: the log has no tenant; use caller, address, address/24",
        ),
        (["access.log", "--per", "2h"], "--per 2h: "),
        (["access.log", "--per", "soon"], "--per soon: "),
        (["access.log", "--zone", "Atlantis"], "--zone Atlantis: is not a time zone"),
        (["-", "--write", "new.toml"], "--write needs the name of the log"),
    ],
)
def test_wrong_usage_is_one_sentence(
    gatelock: Gatelock, access_log: Path, arguments: list[str], sentence: str
) -> None:
    result = gatelock("look", *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_without_permission_is_named(
    gatelock: Gatelock, access_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:  # the mode of the file does not stop root
        raise PermissionError(EACCES, os.strerror(EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    result = gatelock("look", str(access_log))
    assert result.exit_code == 2
    assert f"{access_log}: Permission denied" in result.stderr


def test_a_reader_that_closes_the_pipe_ends_it_silently(access_log: Path) -> None:
    command = f"{sys.executable} -m analyzer.faces.cli look {access_log} | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A look at standard input that does not end."""
    command = [sys.executable, "-m", "analyzer.faces.cli", "look", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        yield running
        running.kill()


def test_ctrl_c_shows_what_was_read_until_then(endless: subprocess.Popen[str]) -> None:
    assert endless.stdin is not None
    endless.stdin.write(flood(100) * 10)
    endless.stdin.flush()
    handled = f"/proc/{endless.pid}/status"
    caught = 1 << (signal.SIGINT - 1)

    def waits() -> bool:
        fields = dict(line.split(":", 1) for line in Path(handled).read_text().splitlines())
        return bool(int(fields["SigCgt"], 16) & caught) and fields["State"].split()[0] == "S"

    wait_until(waits, within_s=30)
    time.sleep(2)  # until it waits for more; before, it would end with nothing
    endless.send_signal(signal.SIGINT)
    output, errors = endless.communicate(timeout=30)
    assert endless.returncode == 0
    assert "2,000 requests of 101 callers" in output
    assert "interrupted: this is what was read until then" in errors


def test_a_name_from_the_log_cannot_control_the_terminal(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(LINE.format(1, 1) * 3 + "\x1b[2J\u202e\n")
    result = gatelock("look", "access.log")
    assert "\\x1b[2J\\u202e" in result.stderr
    assert "\x1b" not in result.output


def test_the_configuration_that_it_writes_is_valid_and_runs(
    gatelock: Gatelock, process: Gatelock, access_log: Path, tmp_path: Path
) -> None:
    result = gatelock("look", "access.log", "--write", "gatelock.toml")
    assert "gatelock.toml: written" in result.stderr
    document = tomllib.loads((tmp_path / "gatelock.toml").read_text())
    (policy,) = document["policies"]
    assert policy["limit"] == looked(gatelock, "access.log")["rehearsal"]["limit"]
    assert document["sources"][0]["file"] == str(access_log)
    checked = gatelock("check")
    assert checked.exit_code == 0, checked.output
    assert "in shadow: 429 for 10m, if it were enforced" in checked.stdout
    running = GatelockProcess(["run"], env={**os.environ, "GATELOCK_ANALYZER__HTTP": "off"})
    try:
        wait_until(lambda: "203.0.113.9" in gatelock("usage", "--by", "caller").output, within_s=60)
    finally:
        running.terminate()
        running.wait(30)
    assert running.returncode == 0


def test_denied_requests_are_not_counted_by_the_configuration_that_it_writes(
    gatelock: Gatelock, process: Gatelock, access_log: Path, tmp_path: Path
) -> None:
    """If they counted, a client that continues would be locked again and again, and each lock be late."""
    assert gatelock("look", "access.log", "--write", "gatelock.toml").exit_code == 0
    text = (tmp_path / "gatelock.toml").read_text()
    assert tomllib.loads(text)["sources"][0]["deny_if"] == {"status": "429"}
    now = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
    line = f'203.0.113.9 - - [{now}] "GET / HTTP/1.1" 429 5 "-" "curl"\n'
    (tmp_path / "later.log").write_text(line * 7)
    assert gatelock("upkeep", "db", "upgrade").exit_code == 0
    assert gatelock("policies", "apply").exit_code == 0
    lock = ("locks", "lock", "address:203.0.113.9", "--for", "1h", "--reason", "TICKET-7")
    assert gatelock(*lock).exit_code == 0
    assert gatelock("upkeep", "import", "later.log", "--source", "access.log").exit_code == 0
    [row] = map(json.loads, gatelock("usage", "--json").output.splitlines())
    assert (row["value"], row["denied"]) == (0, 7)


def test_a_rotated_log_is_followed_under_the_name_that_grows(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "access.log.2.gz").write_bytes(gzip.compress(flood(30).encode()))
    result = gatelock("look", "access.log.2.gz", "--write", "new.toml")
    written = tomllib.loads((tmp_path / "new.toml").read_text())
    assert written["sources"][0]["file"] == f"{tmp_path}/access.log"
    assert "does not exist: correct `file` in new.toml" in result.stderr


def test_an_existing_configuration_is_not_overwritten(
    gatelock: Gatelock, access_log: Path, tmp_path: Path
) -> None:
    (tmp_path / "gatelock.toml").write_text("mine")
    result = gatelock("look", "access.log", "--write", "gatelock.toml")
    assert result.exit_code == 2
    assert (tmp_path / "gatelock.toml").read_text() == "mine"


@pytest.mark.parametrize(("offset", "zone"), [("", "UTC"), ("Z", None), ("+0100", None)])
def test_times_without_a_zone_are_read_as_utc_and_it_says_so(
    gatelock: Gatelock, tmp_path: Path, offset: str, zone: str | None
) -> None:
    lines = [{"time": f"2026-11-20 10:00:{n:02}{offset}", "user": f"u{n % 7}"} for n in range(40)]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    sentence = "log.jsonl: its times have no time zone, and are read as UTC"
    assert (sentence in gatelock("look", "log.jsonl").stderr) == bool(zone)
    shown = json.loads(gatelock("look", "log.jsonl", "--json").stdout)
    assert shown["files"][0]["guessed_zone"] == zone


def test_hours_are_shown_in_a_zone(gatelock: Gatelock, access_log: Path) -> None:
    shown = gatelock("look", "access.log", "--zone", "Asia/Tokyo").stdout
    assert "requests by hour of the day (Asia/Tokyo)" in shown
    assert "loudest 2025-10-10T22:00+09:00 (400)" in shown
