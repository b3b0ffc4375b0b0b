"""Reads the source of both packages without importing it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("analyzer", "gatekeeper")
# Values in, values out: no clock, no I/O, no logging, no threads, no SQL.
PURE = (
    *(f"analyzer.kernel.{name}" for name in ("kept_ages", "model", "number_texts", "shipping_delays")),
    "analyzer.kernel.jobs.job_schedules",
    *(
        f"analyzer.plan.{name}"
        for name in (
            *("automata", "decimals", "derived_meters", "expressions", "format_decoder", "groupings"),
            *(
                "mapping",
                "meter_units",
                "meters",
                "patterns",
                "plan",
                "plan_differences",
                "policies",
                "proposals",
                "route_matcher",
                "sums",
                "timestamps",
            ),
            *("value_rules", "windows"),
        )
    ),
    "analyzer.sources.batches",
    *(f"analyzer.counting.{name}" for name in ("counter", "measured_delays", "records")),
    *(
        f"analyzer.judging.{name}"
        for name in (
            *("activation_steps", "brakes", "caller_limits", "circumstances", "earned_notices", "judge"),
            *("kinds", "plan_sums", "rolling", "totals"),
        )
    ),
    *(
        f"analyzer.gates.{name}"
        for name in ("fleet_summary", "gate_health", "refused_requests", "unknown_callers")
    ),
    *(
        f"analyzer.forecast.simulation.{name}"
        for name in ("least_limits", "policy_locks", "series_simulation")
    ),
    *(f"analyzer.replay.{name}" for name in ("count_differences", "replayed_plan", "twin_counter")),
    *("analyzer.delays.delay_bound", "analyzer.delays.delay_parts"),
)


class Import(NamedTuple):
    """One imported name. `from a.b import c` is a.b.c, whether c is a module or a name in one."""

    line: int
    name: str
    for_types: bool  # in the body of `if TYPE_CHECKING:`


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), path)


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the packages."""

    name: str
    path: Path
    read: Callable[[Path], ast.Module] = parsed

    @property
    def tree(self) -> ast.Module:
        """The syntax tree, read when it is first needed: to collect tests, names are enough."""
        return self.read(self.path)

    def imports(self) -> Sequence[Import]:
        """Returns every import of this file, also those inside functions and for types alone."""
        return imports_in(self.tree)


@cache
def imports_in(tree: ast.Module) -> Sequence[Import]:
    for_types = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for statement in branch.body
        for node in ast.walk(statement)
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                assert not node.level, "relative imports are banned by ruff"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            case _:
                continue
        found += [Import(node.lineno, name, node in for_types) for name in names]
    return found


@cache
def modules() -> Mapping[str, Module]:
    """Returns every module of both packages by its dotted name."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def within(name: str, *roots: str) -> bool:
    """Whether `name` is one of `roots` or below one: analyzer.plan.windows is within analyzer.plan."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def imported_modules(module: Module, *, for_types: bool) -> set[str]:
    """Returns the modules of both packages that `module` imports, with `for_types` also for types alone."""
    found = set()
    for imported in module.imports():
        name = imported.name
        while name and name not in modules():
            name = name.rpartition(".")[0]
        if name and name != module.name and (for_types or not imported.for_types):
            found.add(name)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one node, each sorted.

    Kosaraju's algorithm: depth first in order of completion, then backwards along the reversed edges.
    """
    finished: list[str] = []
    seen: set[str] = set()

    def visit(node: str, edges: Mapping[str, set[str]], order: list[str]) -> None:
        seen.add(node)
        for following in sorted(edges[node] - seen):
            if following not in seen:
                visit(following, edges, order)
        order.append(node)

    for node in graph:
        if node not in seen:
            visit(node, graph, finished)
    reversed_graph: dict[str, set[str]] = {node: set() for node in graph}
    for node, targets in graph.items():
        for target in targets:
            reversed_graph[target].add(node)
    seen.clear()
    components: list[list[str]] = []
    for node in reversed(finished):
        if node not in seen:
            visit(node, reversed_graph, component := [])
            components.append(sorted(component))
    return sorted(component for component in components if len(component) > 1)


@cache
def tracked_files() -> Sequence[Path]:
    """Returns the files that git tracks, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
