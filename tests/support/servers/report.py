"""The run's last lines say which server each suite used: a green run on a mock is not one on Kafka."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import Any, NoReturn

import pytest

from tests.support.servers import Missing

# By a fixture of these names a test asks for a server.
FIXTURES = {
    "kafka": {"kafka", "real_kafka", "own_kafka"},
    "postgresql": {"postgres", "own_postgres"},
    "redis": {"redis_server", "own_redis"},
}


HANDED_OVER = "servers"


class ServersUsed:
    """A plugin that remembers who used what. Under CI=true a server that is not real fails the test."""

    def __init__(self, *, in_ci: bool) -> None:
        self._in_ci = in_ci
        self._kinds: defaultdict[str, list[str]] = defaultdict(list)
        self._uses: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def found(self, server: str, kind: str, *, real: bool = True) -> None:
        """Note what stands for `server` in this run."""
        self._note(server, kind)
        if self._in_ci and not real:
            pytest.fail(f"under CI=true {server} must be a real one; found: {kind}", pytrace=False)

    def lacks(self, server: str, missing: Missing) -> NoReturn:
        """Skip a test that has no server; under CI=true, fail it."""
        self._note(server, f"none ({missing})")
        if self._in_ci:
            pytest.fail(f"under CI=true {server} must be there; {missing}", pytrace=False)
        pytest.skip(f"{server}: {missing}")

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Reached only by a test whose servers are there."""
        suite = "/".join(item.path.relative_to(item.config.rootpath).parts[:2])
        for server in servers_of(item):
            self._uses[server][suite] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In one of several processes that share the tests: hand over what is known here."""
        if (told := getattr(session.config, "workeroutput", None)) is not None:
            told[HANDED_OVER] = [dict(self._kinds), {name: dict(uses) for name, uses in self._uses.items()}]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """In the process that has the last word: take what one of the others knows. One that was killed
        hands over nothing."""
        kinds, uses = getattr(node, "workeroutput", {}).get(HANDED_OVER, ({}, {}))
        for server, known in kinds.items():
            for kind in known:
                self._note(server, kind)
        for server, counts in uses.items():
            self._uses[server].update(counts)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line, just above pytest's own last one."""
        told = [self._tell(server) for server in sorted(self._kinds)]
        if told:
            terminalreporter.write_line("servers: " + "; ".join(told))

    def _note(self, server: str, kind: str) -> None:
        if kind not in self._kinds[server]:  # tests that own a server may have another kind than the rest
            self._kinds[server].append(kind)

    def _tell(self, server: str) -> str:
        kinds = " and ".join(self._kinds[server])
        uses = ", ".join(f"{suite}: {count}" for suite, count in sorted(self._uses[server].items()))
        return f"{server} {kinds} ({uses})" if uses else f"{server} {kinds}"


def servers_of(item: pytest.Item) -> set[str]:
    """Which servers a test asks for, by its fixtures or by its parameter `database`."""
    asked = set(getattr(item, "fixturenames", ()))
    servers = {server for server, names in FIXTURES.items() if names & asked}
    callspec = getattr(item, "callspec", None)
    if callspec is not None and callspec.params.get("database") == "postgresql":
        servers.add("postgresql")
    return servers


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}
