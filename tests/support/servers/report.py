"""The last lines of a run: the servers that each suite used, and the tests that lacked one."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from tests.support.servers import PACKAGES, Missing

# The fixtures by which a test asks for a server.
FIXTURES = {
    "kafka": {"kafka", "real_kafka", "own_kafka"},
    "pgbouncer": {"new_pooler"},
    "postgresql": {"postgres", "own_postgres"},
    "redis": {"redis_server", "own_redis"},
    "tlc": {"tlc"},
}
WORKER_OUTPUT = "servers"
SKIPPED = re.compile(r"Skipped: needs (?P<server>\w+): ")


class ServersUsed:
    """A plugin that notes which tests used which server, and which were left out.

    With `in_ci` a missing server, or a mock in place of one, fails the test.
    """

    def __init__(self, *, in_ci: bool) -> None:
        self._in_ci = in_ci
        self._kinds: defaultdict[str, list[str]] = defaultdict(list)
        self._uses: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._left_out: Counter[str] = Counter()

    def found(self, server: str, kind: str, *, real: bool = True) -> None:
        """Notes the kind of a server that tests use."""
        self._note(server, kind)
        if self._in_ci and not real:
            pytest.fail(f"under CI=true {server} must be a real server; found: {kind}", pytrace=False)

    def lacks(self, server: str, missing: Missing) -> NoReturn:
        """Skips a test that needs a server; fails it under CI=true."""
        self._note(server, f"none ({missing})")
        if self._in_ci:
            pytest.fail(f"under CI=true {server} is required; {missing}", pytrace=False)
        pytest.skip(f"needs {server}: {missing}")

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Counts the test; called only after its fixtures have found their servers."""
        suite = "/".join(item.path.relative_to(item.config.rootpath).parts[:2])
        for server in servers_of(item):
            self._uses[server][suite] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test that `lacks` has skipped.

        Not counted in `lacks` itself: a fixture of the session calls that for its first test only.
        """
        if report.skipped and isinstance(report.longrepr, tuple):
            skipped = SKIPPED.match(report.longrepr[2])
            if skipped:
                self._left_out[skipped["server"]] += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Passes the notes of a worker of pytest-xdist to its controller; there, writes the last line."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            uses = {server: dict(counts) for server, counts in self._uses.items()}
            output[WORKER_OUTPUT] = [dict(self._kinds), uses]
        yield
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if output is None and self._left_out and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(left_out(self._left_out))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes the notes of a worker; a worker that was killed leaves none."""
        kinds, uses = getattr(node, "workeroutput", {}).get(WORKER_OUTPUT, ({}, {}))
        for server, of_server in kinds.items():
            for kind in of_server:
                self._note(server, kind)
        for server, counts in uses.items():
            self._uses[server].update(counts)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes one line about all servers, above pytest's summary."""
        servers = [self._describe(server) for server in sorted(self._kinds)]
        if servers:
            terminalreporter.write_line("servers: " + "; ".join(servers))

    def _note(self, server: str, kind: str) -> None:
        # A test with a separate server may have another kind than the rest.
        if kind not in self._kinds[server]:
            self._kinds[server].append(kind)

    def _describe(self, server: str) -> str:
        kinds = " and ".join(self._kinds[server])
        uses = ", ".join(f"{suite}: {count}" for suite, count in sorted(self._uses[server].items()))
        return f"{server} {kinds} ({uses})" if uses else f"{server} {kinds}"


def left_out(counts: Counter[str]) -> str:
    """Returns the last line of a run that lacked servers, with the Debian packages to install."""
    parts = [
        f"{count} test{'s' if count > 1 else ''} that need{'' if count > 1 else 's'} {server} "
        f"(apt-get install {PACKAGES[server]})"
        for server, count in sorted(counts.items())
    ]
    return "left out: " + ", ".join(parts)


def servers_of(item: pytest.Item) -> set[str]:
    """Returns the servers that a test asks for, by its fixtures or by its parameter `database`."""
    fixtures = set(getattr(item, "fixturenames", ()))
    servers = {server for server, names in FIXTURES.items() if names & fixtures}
    callspec = getattr(item, "callspec", None)
    if callspec is not None and callspec.params.get("database") == "postgresql":
        servers.add("postgresql")
    return servers


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}
