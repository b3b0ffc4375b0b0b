"""How the tree looks: what lies where, and which words it uses."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gatekeeper
from tests.house.reading import ROOT, modules, tracked_files

TOP = {
    *("README.md", "LICENSE", "pyproject.toml", "constraints.txt", "Makefile", ".ci"),
    *(".editorconfig", ".gitattributes", ".gitignore"),
    *("analyzer", "gatekeeper", "migrations", "tests", "deploy", "docs"),
}
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600

# Spelled so that this file does not hold them: where packages come from is the machine's affair.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("golang", "org"),
        ("deb", "debian", "org"),
    )
]
NOT_FOR_THE_PUBLIC = re.compile("|".join([*map(re.escape, REGISTRIES), r"(?<![\w.:/])/(work|root)/"]))
WRITTEN = {".py", ".md", ".toml", ".txt", ".xml", ".yaml", ".yml", ".mako", ".html", ".sh", ""}

NO_NAME = {"base", "common", "helpers", "misc", "util", "utils"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module.path}:{node.lineno}: {node.name}", node


def test_the_top_level_holds_what_was_agreed() -> None:
    assert {path.parts[0] for path in tracked_files()} - TOP == set()


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{path}: {hit[0]}"
        for path in tracked_files()
        if path.suffix in WRITTEN
        and (hit := NOT_FOR_THE_PUBLIC.search((ROOT / path).read_text(errors="replace")))
    ]
    assert found == []


def test_every_module_says_what_it_is_for() -> None:
    assert [name for name, module in modules().items() if not ast.get_docstring(module.tree)] == []


def test_a_name_says_what_is_inside() -> None:
    assert [name for name in modules() if NO_NAME & set(name.split("."))] == []


def test_nothing_is_left_for_later() -> None:
    found = {name: UNFINISHED.findall(module.path.read_text()) for name, module in modules().items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_a_function_fits_a_screen_and_a_module_one_idea() -> None:
    long = [
        where for where, node in functions() if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    long += [
        f"{module.path}: {lines} lines"
        for module in modules().values()
        if (lines := len(module.path.read_text().splitlines())) > MODULE_LINES_MAX
    ]
    assert long == []


def test_what_threads_wait_for_is_not_called_a_lock() -> None:
    """A lock is a closed gate; the other thing is a mutex."""
    called_so = [
        f"{module.path}:{node.lineno}: {ast.unparse(node)}"
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        if re.search(r"lock\b.*= .*\bR?Lock\(\)", ast.unparse(node))
    ]
    assert called_so == []


@pytest.mark.parametrize("name", getattr(gatekeeper, "__all__", ()))
def test_public_names_carry_no_unit(name: str) -> None:
    public = getattr(gatekeeper, name)
    words = [word for word in dir(public) if not word.startswith("_")]
    if callable(public):
        words += inspect.signature(public).parameters
    assert [word for word in words if re.search(r"_(s|ms|us|ns)$", word)] == []


def test_no_link_in_the_documents_leads_nowhere() -> None:
    links = [
        (path, link)
        for path in tracked_files()
        if path.suffix == ".md"
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / path).read_text())
    ]
    assert [f"{path}: {link}" for path, link in links if not (ROOT / path.parent / Path(link)).exists()] == []
