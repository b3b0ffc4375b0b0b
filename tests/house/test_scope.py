"""Lists of what exists, and of what does not, in documents and docstrings: they agree with the code.

Such a list is written by hand, and each subject that lands later leaves it behind.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from analyzer.config.diagnostics.pydantic_errors import UNAVAILABLE
from analyzer.counting.records.formats import FORMATS
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.judging.kinds import KINDS
from analyzer.kernel.tokens import SCOPES
from tests.house.commands import COMMANDS
from tests.house.reading import ROOT, modules, tracked_files, within
from tests.house.test_settings_page import HEADINGS

COMPARISON = (ROOT / "docs/comparison.md").read_text()
SECURITY = (ROOT / "docs/security.md").read_text()
OPERATING = (ROOT / "docs/operating.md").read_text()

# What the comparison says is absent, and a pattern of the names that it would have here.
ABSENT = {
    "Prices, invoices": r"price|invoice|currency",
    "Blocklists shared between installations": r"blocklist|community",
}
# Strengths of other programs, by an earlier page, and the command, endpoint or key that we do have for it.
NOT_BETTER_THERE = {
    "manual decisions": "locks lock",
    "simulation": "policies simulate",
    "days that are closed": "billing days close",
    "CloudEvents": "billing report write",
    "user interface": "serve",
    "reason codes": "explain",
}
# Products that a docstring names, and the module that it takes to use them.
PRODUCTS = {"OpenTelemetry": "opentelemetry", "APScheduler": "apscheduler", "uvicorn": "uvicorn"}
LISTED_ROOMS = ("analyzer.faces.api",)  # analyzer.sources.kafka: see test_documented.py


def section(page: str, heading: str) -> str:
    """Returns the text below a heading, to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def bullets(text: str) -> list[str]:
    return re.findall(r"^- ([^:\n]*)", text, re.MULTILINE)


def names_of_everything() -> set[str]:
    """The commands with their options, the endpoints, and the keys of the configuration."""
    commands = {" ".join(words) for words in COMMANDS}
    options = {option for command in COMMANDS.values() for param in command.params for option in param.opts}
    keys = {field for table in HEADINGS.values() for field in table.model_fields}
    return commands | options | keys | {endpoint.path for endpoint in ENDPOINTS}


def found_names(pattern: str, names: set[str]) -> list[str]:
    return sorted(name for name in names if re.search(pattern, name))


def test_a_subject_that_the_comparison_calls_absent_has_no_command_endpoint_or_key() -> None:
    listed = bullets(section(COMPARISON, "What it does not do"))
    assert listed[: len(ABSENT)] == list(ABSENT)
    assert {name: found_names(pattern, names_of_everything()) for name, pattern in ABSENT.items()} == {
        name: [] for name in ABSENT
    }


def test_a_command_for_something_absent_would_be_noticed() -> None:
    names = names_of_everything() | {"blocklist add"}
    pattern = ABSENT["Blocklists shared between installations"]
    assert found_names(pattern, names) == ["blocklist add"]
    assert found_names("lock", names), "the names are read"


def test_formats_and_languages_of_the_comparison_are_all_that_there_are() -> None:
    formats, languages = bullets(section(COMPARISON, "What it does not do"))[len(ABSENT) :]
    assert set(re.findall(r"`(\w+)`", formats)) == set(FORMATS)
    assert "Python" in languages
    others = {path.suffix for path in tracked_files() if path.parts[0] in ("gatekeeper", "deploy")}
    assert not others & {".go", ".js", ".ts", ".rs", ".java", ".rb", ".php"}


@pytest.mark.parametrize("subject", NOT_BETTER_THERE)
def test_no_other_program_is_praised_for_what_is_here(subject: str) -> None:
    assert NOT_BETTER_THERE[subject] in names_of_everything()
    better = re.findall(r"\*Better there:\*(.*?)\n\n", COMPARISON, re.DOTALL)
    assert len(better) > 5
    assert [text for text in better if subject in " ".join(text.split())] == []


def test_commands_of_what_it_does_exist() -> None:
    """Others are compared by test_documented.py, which knows only commands that exist."""
    here = section(COMPARISON, "What Gatelock does")
    shown = re.findall(r"`gatelock ([a-z ]+?)`", here)
    assert len(shown) > 5
    assert [words for words in shown if words not in {" ".join(command) for command in COMMANDS}] == []


def test_the_readme_names_all_kinds_of_policies_and_all_frameworks() -> None:
    readme = (ROOT / "README.md").read_text()
    text = readme[readme.index("**What it does today.**") : readme.index("**What it does not do.**")]
    assert set(re.findall(r"\*(\w+)s\*", text)) == {kind.rpartition("-")[2] for kind in KINDS}
    frameworks = {"asgi", "wsgi", "fastapi", "flask", "django"}
    assert set(re.findall(r"\b(asgi|wsgi|fastapi|flask|django)\b", text.lower())) == frameworks
    adapters = {path.stem for path in (ROOT / "gatekeeper/adapters").glob("*.py")}
    assert frameworks <= adapters
    assert adapters & {"starlette", "sanic", "aiohttp", "falcon", "bottle", "litestar"} == set()


def test_operating_names_the_command_for_a_wrong_mapping() -> None:
    answer = section(OPERATING, "Change a mapping")
    assert "](replay.md)" in answer
    assert "new database" not in answer


def test_the_security_page_has_a_row_for_each_scope_of_a_token() -> None:
    rows = re.findall(r"^\| holder of an? `(\w+)` token", SECURITY, re.MULTILINE)
    assert tuple(rows) == SCOPES


def test_the_security_page_lists_every_act_that_asks() -> None:
    """An act asks if it has `--dry-run`, and needs `--yes` without a terminal."""
    asks = {
        " ".join(words)
        for words, command in COMMANDS.items()
        if {"--yes", "--dry-run"} <= {option for param in command.params for option in param.opts}
    }
    first = section(SECURITY, "Acts that cannot be undone").partition(" need a reason")[0]
    assert set(re.findall(r"`([a-z ]+)`", first)) == asks


def test_no_key_that_is_called_unavailable_exists() -> None:
    for table, keys in UNAVAILABLE.items():
        if not table:  # whole tables
            continue
        heading = next(name for name in HEADINGS if name.strip("`[]") == table[0])
        fields = HEADINGS[heading].model_fields
        names = {field.alias or name for name, field in fields.items()}
        assert names & keys.keys() == set(), table


@pytest.mark.parametrize("room", LISTED_ROOMS)
def test_the_docstring_of_a_room_names_each_file_and_folder_in_it(room: str) -> None:
    inside = {
        name.removeprefix(f"{room}.").partition(".")[0] for name in modules() if name.startswith(f"{room}.")
    }
    docstring = ast.get_docstring(modules()[room].tree) or ""
    assert set(re.findall(r"`(\w+)`", docstring)) == inside


PLAIN = re.compile(r"`([a-z_]+)`")
ELSEWHERE = {"gatekeeper", "gatelock", "policy"}  # a package, a command, a method


def test_docstrings_of_packages_name_modules_that_are_in_them() -> None:
    """A module that moves leaves its name behind in the docstring of its old package."""
    stale = {}
    for name, module in modules().items():
        if module.path.name == "__init__.py" and within(name, "analyzer"):
            known = {part for other in modules() if within(other, name) for part in other.split(".")}
            named = set(PLAIN.findall(ast.get_docstring(module.tree) or ""))
            if unknown := named - known - ELSEWHERE - set(chapters()):
                stale[name] = unknown
    assert stale == {}


def chapters() -> set[str]:
    """Returns the names of what is directly in the analyzer."""
    return {name.split(".")[1] for name in modules() if within(name, "analyzer") and "." in name}


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_that_docstrings_name_is_used(product: str) -> None:
    naming = [
        name
        for name, module in modules().items()
        if product in (ast.get_docstring(module.tree) or "") and name.startswith("analyzer")
    ]
    imported = {found.name.partition(".")[0] for module in modules().values() for found in module.imports()}
    assert not naming or PRODUCTS[product] in imported, naming


# --- places that the guide to a change names

GUIDE = section((ROOT / "docs" / "architecture.md").read_text(), "What to touch for a change")
ROWS = dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", GUIDE, re.MULTILINE))
PLACE = re.compile(r"`([\w/.<>]+)`|(?<![\w/`])((?:docs|tests)/[\w/.-]+)")


def places(row: str) -> set[str]:
    """The files and folders that a row names, and names of values as `module.NAME`."""
    return {(found[1] or found[2]).rstrip(".,") for found in PLACE.finditer(ROWS[row])}


@cache
def files_and_folders() -> set[str]:
    """The tracked files and their folders."""
    files = tracked_files()
    return {path.as_posix() for path in (*files, *(parent for file in files for parent in file.parents))}


def is_there(place: str) -> bool:
    """Whether a file, a folder, or a value of a module has this name."""
    known = files_and_folders()
    if "<" in place or any(path == place or path.endswith(f"/{place}") for path in known):
        return True
    module, _, value = place.rpartition(".")
    files = [path for path in tracked_files() if path.as_posix().endswith(f"{module}.py")] if module else []
    return any(re.search(rf"\b{value}\b", (ROOT / path).read_text()) for path in files)


def test_the_guide_names_places_that_exist() -> None:
    assert len(ROWS) > 15
    paths = {place for row in ROWS for place in places(row) if "/" in place}
    assert len(paths) > 40
    assert sorted(place for place in paths if not is_there(place)) == []


def test_a_place_that_does_not_exist_is_noticed() -> None:
    assert is_there("plan/meters.JOINS")
    assert not is_there("plan/meters.JOINT")
    assert not is_there("plan/metres.py")


# The words of a thing, outside of the module where it is listed; test_tables.py has the comparisons.
TELLS_APART = {
    "a join of meters": r"""\bjoin (?:==|!=) "(?:sum|max)\"""",
    "a log format": r"""\"combined\"""",
    "a job": r"""\bJobEntry\(\"""",
}
OWN_MODULES = {"combined_format"}


@pytest.mark.parametrize("row", TELLS_APART)
def test_the_guide_names_each_module_that_tells_one_kind_from_another(row: str) -> None:
    named = {place.rpartition("/")[2].partition(".")[0] for place in places(row)}
    expected = {
        module.path.stem
        for name, module in modules().items()
        if name.startswith("analyzer") and re.search(TELLS_APART[row], module.path.read_text())
    }
    assert expected
    assert expected - named - OWN_MODULES == set()
