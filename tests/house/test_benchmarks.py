"""Each measurement, and each long run that the Makefile or a page names, runs in its smallest form.

Tables, metrics and configurations change under them, and months may pass until a developer runs one. `make
test` runs those that need no process; `make deep` each command as a developer would.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import prune, sizes
from tests.benchmarks.__main__ import BENCHES
from tests.benchmarks.judge import Machine
from tests.benchmarks.percentiles import percentile, percentiles
from tests.benchmarks.servers import Servers
from tests.house.reading import ROOT, tracked_files

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres

# Arguments of the smallest form of each module that is a program.
SMALLEST = {
    "tests.benchmarks": ["--small"],
    "tests.benchmarks.day": ["2000"],
    "tests.benchmarks.gate_peers": ["--rounds", "1", "--seconds", "0.1"],
    "tests.benchmarks.judge": ["--small"],
    "tests.benchmarks.limits": ["--seconds", "0.01", "--callers", "2000", "--names", "TokenBucket.allow"],
    "tests.benchmarks.limits_redis": ["--calls", "10"],
    "tests.benchmarks.look": ["2000", "1"],
    "tests.benchmarks.outcomes": ["2000", "1"],
    "tests.benchmarks.prune": ["2000", "--seconds", "0.5"],
    "tests.benchmarks.push_server": ["--sessions", "3", "--messages", "40"],
    "tests.benchmarks.replay": ["2000", "20"],
    "tests.benchmarks.shares": ["200", "20"],
    "tests.benchmarks.simulate": ["100"],
    "tests.benchmarks.sizes": ["2000"],
    "tests.benchmarks.web": ["--days", "1", "--rows", "2", "--rounds", "1", "--tabs-s", "1"],
    "tests.cuts": ["--seeds", "1", "--seconds", "3"],
    "tests.faults": ["--faults", "2", "--records", "2000"],
    "tests.simulation": ["--seeds", "2"],
    "tests.house.folders": [],
    "tests.spec": ["Stale-bound"],
}
# Programs that others of these start: an application under load, and alike.
STARTED_BY_OTHERS = {
    "tests.benchmarks.gate_apps",
    "tests.benchmarks.logged_apps",
    "tests.benchmarks.requestlog",  # `make bench ARGS=requestlog`
    "tests.benchmarks.shared_gzip",
}
PEERS = ROOT / ".cache/peers/bin/python"  # made by `make bench-gate`, with libraries that nothing else needs
NEED_PEERS = {"tests.benchmarks.gate_peers", "tests.benchmarks.limits"}
NAMED = re.compile(r"(?:\$\(PY\)|bin/python|\bpython) -m (tests\.[\w.]+)")
WITHOUT_PROCESSES = ("allow", "flush", "requestlog")


def printed_table(output: str) -> list[str]:
    """Returns the lines of `output` that have a figure. Raises AssertionError if they form no table."""
    assert "nan" not in output.lower().split()
    assert "Traceback" not in output
    figures = [line for line in output.splitlines() if re.search(r"\d", line)]
    assert figures, "nothing was measured"
    return figures


def programs() -> set[str]:
    """Returns the modules of benchmarks that are programs."""
    paths = [
        path for path in tracked_files() if path.is_relative_to("tests/benchmarks") and len(path.parts) == 3
    ]
    names = {path for path in paths if 'if __name__ == "__main__"' in (ROOT / path).read_text()}
    return {".".join(path.with_suffix("").parts).removesuffix(".__main__") for path in names}


def named_programs() -> set[str]:
    """Returns the modules that the Makefile and the documents run."""
    pages = [path for path in tracked_files() if path.suffix == ".md" or path.name == "Makefile"]
    return {name for path in pages for name in NAMED.findall((ROOT / path).read_text())}


def test_each_program_that_measures_or_is_named_has_a_smallest_form() -> None:
    in_the_makefile = {
        "tests.cuts",
        "tests.faults",
        "tests.simulation",
        "tests.spec",
        "tests.benchmarks.prune",
    }
    assert named_programs() > in_the_makefile
    expected = {name for name in named_programs() | programs() if not name.startswith("tests.support.")}
    assert expected - STARTED_BY_OTHERS == set(SMALLEST)


def test_each_bench_of_the_makefile_runs_a_program_with_a_smallest_form() -> None:
    targets = re.findall(
        r"^(bench[\w-]*|faults|cuts|simulation|soak|spec):.*\n((?:\t.*\n)+)", makefile(), re.MULTILINE
    )
    assert len(targets) > 12
    for target, recipe in targets:
        assert set(NAMED.findall(recipe)) <= set(SMALLEST), target


def makefile() -> str:
    return (ROOT / "Makefile").read_text()


@pytest.mark.deep("runs them: minutes")
@pytest.mark.parametrize("module", SMALLEST)
def test_the_smallest_form_prints_figures_and_no_noise(module: str) -> None:
    python = str(PEERS) if module in NEED_PEERS else sys.executable
    if not Path(python).exists():
        pytest.skip("needs the libraries to compare with: make bench-gate")
    done = subprocess.run(
        [python, "-m", module, *SMALLEST[module]], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    printed_table(done.stdout)


@pytest.mark.deep("runs it: a minute")
def test_a_backlog_is_counted_with_a_share_of_a_core() -> None:
    small = ["-m", "tests.faults", "--core", "0.2", "--records", "4000"]
    done = subprocess.run([sys.executable, *small], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended by itself: never" in done.stdout
    assert "every count right" in done.stdout


@pytest.mark.parametrize("name", WITHOUT_PROCESSES)
def test_a_bench_without_processes_prints_figures(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = BENCHES[name]
    if bench.needs_servers:
        postgres = MigratedDatabases(
            request.getfixturevalue("postgres"), request.getfixturevalue("postgres_template")
        )
        bench.run(Servers(None, postgres, tmp_path), **bench.smallest)  # type: ignore[arg-type]  # no Kafka is asked
    else:
        bench.run(**bench.smallest)
    output, noise = capfd.readouterr()
    assert noise == ""
    printed_table(output)


class MigratedDatabases:
    """A PostgreSQL whose new databases have all tables."""

    def __init__(self, postgres: Postgres, template: str) -> None:
        self._postgres, self._template = postgres, template

    def new_database(self) -> str:
        return self._postgres.new_database(template=self._template)


ON_SQLITE: Mapping[str, Callable[[Machine], None]] = {
    "prune": lambda machine: prune.measure(machine, 2_000, 0.1),
    "sizes": lambda machine: sizes.measure(machine.name, machine.new_url(), 1_000),
}


@pytest.mark.parametrize("name", ON_SQLITE)
def test_a_bench_on_a_database_alone_prints_figures(
    name: str, new_sqlite_url: Callable[[], str], capfd: pytest.CaptureFixture[str]
) -> None:
    ON_SQLITE[name](Machine("sqlite", new_sqlite_url, time.process_time))
    output, noise = capfd.readouterr()
    assert noise == ""
    assert len(printed_table(output)) > 2


def test_percentiles_of_a_few_waits_are_numbers() -> None:
    assert percentiles([0.5], 50, 99) == "p50 0.500   p99 0.500   max 0.500"
    assert percentiles([], 50) == "p50 0.000   max 0.000"
    assert [percentile([float(n) for n in range(101)], at) for at in (1, 50, 99)] == [1.0, 50.0, 99.0]


def test_each_measurement_of_kafka_flushes_its_producer() -> None:
    """The client writes to standard error about records that were not delivered when it ends."""
    makes_one = {
        path.name
        for path in (ROOT / "tests/benchmarks").glob("*.py")
        if re.search(r"(?<!\w)Producer\(", path.read_text())
    }
    assert makes_one == {"producers.py"}, "use `producing`"
