"""Messages point to what an installation has: extras that exist, and no file that only a checkout has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

import pytest

from analyzer import demo
from analyzer.demo.processes import ProcessNotStarted
from tests.house.reading import ROOT, modules

EXTRA = re.compile(r"gatelock\[(\w+)\]")
ONLY_IN_A_CHECKOUT = re.compile(r"\b(?:docs|deploy)/[\w./-]+")


def literals() -> Iterator[tuple[str, str]]:
    """Each text in the code that is not a docstring, with its place."""
    for module in modules().values():
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield f"{module.path}:{node.lineno}", node.value


def test_no_message_names_a_file_that_the_package_does_not_carry() -> None:
    assert [f"{at}: {text}" for at, text in literals() if ONLY_IN_A_CHECKOUT.search(text)] == []


def test_every_extra_in_a_message_exists_and_is_quoted_for_a_shell() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    found = [(at, text, name) for at, text in literals() for name in EXTRA.findall(text)]
    assert len(found) > 8
    assert [at for at, text, name in found if name not in extras or f"'gatelock[{name}]'" not in text] == []


def test_the_demo_shows_the_name_of_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich takes brackets for markup."""

    async def fail(*_: object, **_options: object) -> None:
        raise ProcessNotStarted("needs confluent-kafka: pip install 'gatelock[demo]'")

    monkeypatch.setattr("analyzer.demo.scenario.run_demo", fail)
    assert demo.main(kafka=None, database=None, as_json=True) == 3
    assert "pip install 'gatelock[demo]'" in capsys.readouterr().err
