"""The table of acts: a row is a command and an endpoint, and each act leaves an entry under its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from analyzer.acting.act import ActContext, Done, fields_of
from analyzer.acting.parameters import (
    AddressRange,
    Fault,
    Length,
    OfText,
    OneOf,
    Param,
    Parameter,
    Switch,
    Time,
    ValueKind,
    Whole,
    read_values,
)
from analyzer.config.settings import Settings
from analyzer.faces.acts import ACTS, Act, List, function
from analyzer.faces.api import made_endpoints
from analyzer.faces.api.endpoints import ApiContext, ApiRequest, NotPossible
from analyzer.faces.api.made_endpoints import endpoint
from analyzer.faces.api.openapi import openapi_document
from analyzer.faces.cli import made
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.suspension import suspend
from analyzer.kernel.database.audit_log import PLAN_IN_FORCE, entries
from analyzer.kernel.tables.schema import metadata, overrides
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.house.commands import COMMANDS
from tests.store.flushing import a_row, flush, now_s

Gatelock = Callable[..., Any]
MONTH = Calendar("month")  # a test must not fail at midnight
PLAN = make_plan([], [], [Quota("daily", 50, MONTH), Quota("watched", 55, MONTH, mode="shadow")])
ARGUMENTS = {
    "locks unlock": "api_key:acme",
    "locks lock": "user:ann --for 1h",
    "locks extend": "api_key:acme --for 60d",
    "locks suspend": "--for 1h",
    "locks resume": "",
    "policies enforce": "watched",
    "callers set": "api_key:acme --plan pro",
    "callers limit": "api_key:acme --amount +5 --policy daily",
    "callers allow": "api_key:acme",
    "callers end": "ID",
    "callers forget": "api_key:acme",
}
ALTERNATIVES = {  # lists that a command shows where a name or a switch is given
    "upkeep jobs history": ["upkeep", "jobs", "list", "roll-up"],
    "alerts messages": ["alerts", "list", "--messages"],
    "locks notices": ["locks", "list", "--notices"],
    "callers overrides": ["callers", "list", "--overrides"],
}
ELSEWHERE = {  # they need more than counts
    "alerts test": "tests/alerts/test_alert_acts.py",
    "alerts resend": "tests/alerts/test_alert_acts.py",
    "alerts contact": "tests/alerts/test_alert_acts.py",
    "alerts remove": "tests/alerts/test_alert_acts.py",
    "upkeep gates forget": "test_gates.py",
    "upkeep sources retire": "test_reading.py",
}

each_row = pytest.mark.parametrize("row", ACTS, ids=lambda row: row.words)


@pytest.fixture
def counted(engine: sa.Engine) -> None:
    """60 requests of acme, which a limit of 50 locks and one of 55 would lock."""
    store = SqlStore(engine, "here")
    store.activate(PLAN)
    flush(store, PLAN, [a_row(60, now_s(engine))])


@each_row
def test_a_row_names_a_function_that_says_what_it_does(row: Act | List) -> None:
    run = function(row.run)
    assert (run.__doc__ or "").partition("\n")[0].endswith(".")
    for field in fields_of(run):
        assert field.param.about.endswith("."), field.name
        if field.param.kind.schema() and not isinstance(field.param.kind, Switch):
            field.param.kind.check(field.param.example)  # raises ValueError for an example that is none


@each_row
def test_the_command_and_the_endpoint_take_the_parameters_of_the_function(row: Act | List) -> None:
    names = {field.name for field in fields_of(function(row.run))}
    options = {param.name for param in made.command(row.words).params}
    assert options - {"config", "json", "reason", "dry_run", "yes", "server", "token_file"} == names
    parameters = {field.name for field in endpoint(row).all_parameters}
    assert parameters - {"limit", "cursor", "reason", "dry_run", "confirmed", "texts"} == names - {"file"}


def test_no_two_rows_have_the_same_words_or_path() -> None:
    assert len({row.words for row in ACTS}) == len({endpoint(row).path for row in ACTS}) == len(ACTS)


@pytest.mark.parametrize("row", [row for row in ACTS if isinstance(row, List)], ids=lambda row: row.words)
def test_a_list_is_printed(row: List, gatelock: Gatelock, counted: None) -> None:
    words = row.words.split() if tuple(row.words.split()) in COMMANDS else ALTERNATIVES[row.words]
    assert gatelock(*words).exit_code in (0, 1)


def test_each_act_is_tried() -> None:
    assert {row.words for row in ACTS if isinstance(row, Act)} == ARGUMENTS.keys() | ELSEWHERE.keys()


def content(engine: sa.Engine) -> dict[str, list[str]]:
    """Returns the rows of all tables."""
    present = set(sa.inspect(engine).get_table_names())
    with engine.connect() as db:
        return {
            table.name: sorted(repr(row) for row in db.execute(sa.select(table)))
            for table in metadata.sorted_tables
            if table.name in present
        }


@pytest.mark.parametrize("words", ARGUMENTS)
def test_an_act_leaves_an_entry_with_its_words_and_a_dry_one_changes_no_row(
    words: str, gatelock: Gatelock, counted: None, engine: sa.Engine
) -> None:
    (row,) = (row for row in ACTS if row.words == words)
    assert isinstance(row, Act)
    gatelock("callers", "limit", "user:ann", "--amount", "9", "--policy", "daily", "--reason", "before")
    suspend(engine, 60_000, "ann", "before", new_mark)
    with engine.connect() as db:
        (id_,) = db.execute(sa.select(overrides.c.id)).scalars()
    command = [*words.split(), *ARGUMENTS[words].replace("ID", id_).split(), "--reason", "INC-311"]
    if row.has_dry_run:
        stored = content(engine)
        assert gatelock(*command, "--dry-run").exit_code == 0
        assert content(engine) == stored
    present = {entry.id for entry in entries(engine)}
    result = gatelock(*command, *(["--yes"] if row.foresee else []))
    assert result.exit_code == 0, result.output
    act = PLAN_IN_FORCE if words == "policies enforce" else words  # a plan says which command has made it
    (entry,) = (entry for entry in entries(engine) if entry.id not in present and entry.act == act)
    assert "@" in entry.who
    assert "INC-311" in entry.why


def greet(
    context: ActContext,
    name: Annotated[str, Param(OfText(metavar="NAME"), "Whom.", "ann")],
    *,
    loud: Annotated[bool, Param(Switch(), "In capitals.", True)] = False,
    times: Annotated[int, Param(Whole(1, 3), "So often.", 2)] = 1,
) -> Done:
    """Greet a caller."""
    if name == "ghost":
        raise Fault("name", "it is not there; see <times>")
    text = " ".join([f"hello {name}"] * times)
    text = text.upper() if loud else text
    return Done([{"said": text}], [text])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Act:
    """A row that only this test has."""
    row = Act("locks greet", "nowhere:greet", "operate", "Greet a caller.", {"said": "hello ann"})
    monkeypatch.setitem(made.BY_WORDS, row.words, row)
    for module in (made, made_endpoints):
        monkeypatch.setattr(module, "function", lambda _path: greet)
    return row


def test_a_new_row_is_a_command_an_endpoint_and_a_part_of_the_description(
    fake: Act, engine: sa.Engine
) -> None:
    def ran(*arguments: str) -> Any:
        return CliRunner().invoke(made.command(fake.words), [*arguments, "--reason", "WHY"])

    assert ran("ann", "--times", "2", "--loud").output == "HELLO ANN HELLO ANN\n"
    wrong = ran("ann", "--times", "9")
    assert (wrong.exit_code, wrong.stderr) == (2, "--times: must be a whole number from 1 to 3\n")
    assert ran("ghost").stderr == "NAME: it is not there; see --times\n"

    row, context = endpoint(fake), ApiContext(engine, Settings())
    values = {"name": "ann", "loud": False, "times": 1, "reason": "WHY"}
    assert row.ask(context, ApiRequest(values, "token ops")) == {"said": "hello ann"}
    with pytest.raises(NotPossible, match=r"^`name`: it is not there; see `times`$"):
        row.ask(context, ApiRequest(values | {"name": "ghost"}, "token ops"))

    operation = openapi_document([row])["paths"]["/v1/locks/greet"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"name", "loud", "times", "reason", "texts"}
    assert schema["required"] == ["name", "reason"]


def test_a_parameter_that_nothing_describes_is_refused() -> None:
    def bare(context: ActContext, name: str) -> Done:
        return Done([{"name": name}], [])

    with pytest.raises(TypeError, match="bare: nothing describes the parameter name"):
        fields_of(bare)


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        (Whole(1, 3), "4", "must be a whole number from 1 to 3"),
        (Length(7), "8d", "8d: write a length such as 30m, 12h or 7d; at most 7d"),
        (Length(7, "none"), "x", "at most 7d, or none"),
        (OneOf(["a", "b"]), "c", "must be one of a, b"),
        (AddressRange(), "10.0.0.1/8", "write 192.0.2.7"),
        (Time(), "soon", "is not a time"),
        (Switch(), "yes", "must be true or false"),
    ],
)
def test_a_wrong_text_is_refused_with_the_name_of_its_parameter(
    kind: ValueKind, text: str, sentence: str
) -> None:
    fields = [Parameter("value", "value", Param(kind, "A value.", "x"))]
    with pytest.raises(Fault, match=sentence) as caught:
        read_values(fields, {"value": text}, is_text=True)
    assert caught.value.name == "value"
    with pytest.raises(Fault):
        read_values(fields, {"value": [text]}, is_text=False)
