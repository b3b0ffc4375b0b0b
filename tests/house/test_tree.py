"""The repository: its top level, the sizes of files and folders, and text that no file may contain."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.reading import ROOT, modules, tracked_files, within

TOP = {
    *("README.md", "SECURITY.md", "LICENSE", "pyproject.toml", "constraints.txt", "Makefile", ".ci"),
    *(".editorconfig", ".gitattributes", ".gitignore"),
    *("analyzer", "gatekeeper", "migrations", "tests", "deploy", "docs"),
}
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600

# Written in parts, so that this file does not contain them: each machine has its own source of packages.
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
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".xml", ".yaml", ".yml", ".mako", ".html", ".sh", ".lua", ""}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module.path}:{node.lineno}: {node.name}", node


def test_the_top_level_contains_only_agreed_files() -> None:
    assert {path.parts[0] for path in tracked_files()} - TOP == set()


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{path}: {hit[0]}"
        for path in tracked_files()
        if path.suffix in TEXT_SUFFIXES
        and (hit := NOT_FOR_THE_PUBLIC.search((ROOT / path).read_text(errors="replace")))
    ]
    assert found == []


def test_every_module_has_a_docstring() -> None:
    assert [name for name, module in modules().items() if not ast.get_docstring(module.tree)] == []


def test_nothing_is_marked_as_unfinished() -> None:
    found = {name: UNFINISHED.findall(module.path.read_text()) for name, module in modules().items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_a_function_fits_on_a_screen() -> None:
    found = [
        where for where, node in functions() if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert found == []


GENERATED = "gatekeeper.client.api_client"  # a method for each endpoint, which only programs write


def test_a_module_is_one_idea() -> None:
    found = {
        str(module.path): lines
        for name, module in modules().items()
        if name != GENERATED and (lines := len(module.path.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert found == {}


def test_no_link_in_the_documents_is_broken() -> None:
    links = [
        (path, link)
        for path in tracked_files()
        if path.suffix == ".md"
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / path).read_text())
    ]
    assert [f"{path}: {link}" for path, link in links if not (ROOT / path.parent / Path(link)).exists()] == []


def test_commands_print_through_one_function() -> None:
    """`say` makes control characters visible: text for a terminal may come from any client."""
    found = [
        f"{module.path}:{node.lineno}"
        for module in modules().values()
        if within(module.name, "analyzer.faces.cli")
        and module.path.name not in ("output.py", "confirmation.py")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print")
    ]
    assert found == []
