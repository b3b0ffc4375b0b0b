"""Commands that are made from rows of the table of acts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from analyzer.acting.act import ActContext, Done, ListRow, Note, NothingFound, fields_of
from analyzer.acting.foreseen import Foreseen
from analyzer.acting.parameters import Caller, Fault, Param, Parameter, Switch, read_values
from analyzer.config.settings import Settings
from analyzer.faces.acts import ACTS, Act, List, function, path_of
from analyzer.faces.cli.confirmation import is_confirmed
from analyzer.faces.cli.described_options import CONFIG_HELP, SETTINGS
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import caller_as_counted, load_settings, open_database
from analyzer.faces.cli.output import json_lines, say, table
from analyzer.faces.cli.server_calls import (
    asking,
    done_by_server,
    json_values,
    rows_of_server,
    server_options,
)
from analyzer.kernel.by import By
from analyzer.kernel.database.engine import Engine

BY_WORDS = {row.words: row for row in ACTS}
REASON_HELP = "Kept with your name; see `gatelock upkeep events list`."


def command(words: str) -> click.Command:
    """Returns the command of a row."""
    row = BY_WORDS[words]
    run = function(row.run)
    fields = tuple(map(_short, fields_of(run)))
    params: list[click.Parameter] = [*map(_parameter, fields)]
    if isinstance(row, Act):
        required = row.reason == "required"
        params.append(_option("--reason", REASON_HELP, metavar="TEXT", required=required))
        if row.has_dry_run:
            params.append(_option("--dry-run", "Show what would change, and change nothing.", is_flag=True))
        if row.foresee:
            yes = "Do it without asking; needed where there is no terminal."
            params.append(_option("--yes", yes, is_flag=True))
    params += server_options()
    params.append(_option("--config", CONFIG_HELP, type=click.Path(path_type=Path)))
    params.append(_option("--json", "Print JSON, one object per line.", is_flag=True))
    call = partial(_act, row, run, fields) if isinstance(row, Act) else partial(_list, row, run, fields)
    return click.Command(
        words.rpartition(" ")[2],
        context_settings=SETTINGS,
        callback=call,
        params=params,
        help=f"{inspect.cleandoc(run.__doc__ or '')}\n\nExample: {example(row, fields)}",
    )


def _short(field: Parameter) -> Parameter:
    """Returns a parameter as commands have it: a caller may be written without its kind."""
    param = field.param
    if not isinstance(param.kind, Caller):
        return field
    return field._replace(param=Param(Caller(may_be_short=True), param.about, param.example))


def example(row: Act | List, fields: tuple[Parameter, ...]) -> str:
    """Returns an example of a command: with what it needs, or its first option."""
    words = ["gatelock", row.words]
    named = [field for field in fields if field.required or field.positional]
    if not named:
        named = [field for field in fields if field.name != "all"][:1]
    for field in named:
        if not field.positional:
            words.append(field.option)
        if not isinstance(field.param.kind, Switch):
            words.append(str(field.param.example))
    if isinstance(row, Act) and row.reason == "required":
        words.append("--reason WHY")
    return " ".join(words)


def _option(name: str, text: str, **settings: Any) -> click.Option:
    return click.Option([name], help=text, **settings)


def _parameter(field: Parameter) -> click.Parameter:
    """Returns click's parameter, which hands on the text as it was written."""
    kind = field.param.kind
    if field.positional:
        metavar = kind.metavar if field.required else f"[{kind.metavar}]"
        return click.Argument([field.name], metavar=metavar, required=field.required, help=field.param.about)
    if isinstance(kind, Switch):
        return click.Option([field.name, field.option], is_flag=True, help=field.param.about)
    default: dict[str, Any] = (
        {} if field.default is None else {"default": str(field.default), "show_default": True}
    )
    return click.Option(
        [field.name, field.option], metavar=kind.metavar, help=field.param.about, required=field.required,
        **default,
    )  # fmt: skip


def _act(row: Act, run: Any, fields: tuple[Parameter, ...], **options: Any) -> None:
    reason, is_json = options["reason"], options["json"]
    is_shown_only = options.get("dry_run", False)
    if row.reason == "required" and not (reason or "").strip():
        raise usage_error("--reason: write a reason; it is kept with your name")
    by = By(operator_name(), (reason or "").strip(), is_shown_only)
    with _answering(fields):
        arguments = _arguments(fields, options)
        if options["server"] is not None:
            _act_by_server(row, fields, options, by)
            return
        with reporting_errors(), _context(options["config"], by) as context:
            if row.foresee and not is_shown_only:
                foreseen: Foreseen = function(row.foresee)(context, **arguments)
                if not is_confirmed(foreseen, yes=options["yes"], dry_run=False, as_json=is_json):
                    return
            done: Done = run(context, **arguments)
            _print(done, is_shown_only=is_shown_only, is_json=is_json)


def _act_by_server(row: Act, fields: tuple[Parameter, ...], options: Mapping[str, Any], by: By) -> None:
    path, values = path_of(row), json_values(fields, options) | {"reason": by.why}
    if row.has_dry_run:
        values["dry_run"] = by.is_shown_only
    is_yes = bool(row.foresee and options["yes"])
    with asking(options["server"], options["token_file"], fields) as connection:
        answer = done_by_server(connection, path, values | ({"confirmed": True} if is_yes else {}), fields)
        if isinstance(answer, Foreseen):
            if not is_confirmed(answer, yes=False, dry_run=False, as_json=options["json"]):
                return
            answer = done_by_server(connection, path, values | {"confirmed": True}, fields)
    if isinstance(answer, Done):
        _print(answer, is_shown_only=by.is_shown_only, is_json=options["json"])


def _print(done: Done, *, is_shown_only: bool, is_json: bool) -> None:
    if is_json:
        json_lines(done.fields)
    else:
        for sentence in done.sentences:
            say(sentence)
        if is_shown_only:
            say("nothing was changed; without --dry-run, this is done")
    if done.is_found:
        raise Exit(FOUND)


def _list(row: List, run: Any, fields: tuple[Parameter, ...], **options: Any) -> None:
    with _answering(fields):
        arguments = _arguments(fields, options)
        if options["server"] is not None:
            values = json_values(fields, options)
            with asking(options["server"], options["token_file"], fields) as connection:
                _print_list(row, fields, options, rows_of_server(connection, path_of(row), values))
            return
        with reporting_errors(), _context(options["config"], By("", "")) as context:
            _print_list(row, fields, options, run(context, **arguments))


def _print_list(
    row: List, fields: tuple[Parameter, ...], options: Mapping[str, Any], listing: Iterator[ListRow | Note]
) -> None:
    """Prints a list and its notes. Exits with 1 if something in it is wrong."""
    notes: list[Note] = []
    wrong: list[bool] = []
    rows = _rows(listing, notes, wrong)
    first = next(rows, None)
    rows = iter(()) if first is None else chain([first], rows)
    for note in notes:
        say(note.sentence, err=True)
    del notes[:]
    if options["json"]:
        json_lines(listed.fields for listed in rows)
    else:
        cells = (_cells(row.columns, listed) for listed in rows if listed.cells is not None)
        is_filtered = any(options[field.name] for field in fields)
        table(row.columns, cells, "nothing matches" if is_filtered else row.empty)
    for note in notes:
        if not (note.is_answer and options["json"]):
            say(note.sentence, err=not note.is_answer)
    if wrong:
        raise Exit(FOUND)


def _rows(rows: Iterator[ListRow | Note], notes: list[Note], wrong: list[bool]) -> Iterator[ListRow]:
    """Yields the rows; puts the notes, and whether something is wrong, into the lists."""
    for row in rows:
        if row.is_wrong:
            wrong[:] = [True]
        if isinstance(row, Note):
            notes.append(row)
        else:
            yield row


def _cells(columns: Any, row: ListRow) -> list[object]:
    values: Mapping[str, Any] = {**row.fields, **(row.cells or {})}
    return ["" if values[column] is None else values[column] for column in columns]


def _arguments(fields: tuple[Parameter, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the function, from the texts of a command. Raises Fault."""
    texts = {field.name: options[field.name] for field in fields if options[field.name] is not None}
    switches = {name: value for name, value in texts.items() if isinstance(value, bool)}
    read = read_values(fields, {k: v for k, v in texts.items() if k not in switches}, is_text=True)
    return read | {field.keyword: switches[field.name] for field in fields if field.name in switches}


@contextmanager
def _answering(fields: tuple[Parameter, ...]) -> Iterator[None]:
    """Exits with 2 for a fault, in the words of a command, and with 1 where nothing is found."""
    try:
        yield
    except Fault as fault:
        raise usage_error(_spelled(fault, fields)) from fault
    except NothingFound as nothing:
        say(str(nothing), err=True)
        raise Exit(FOUND) from nothing


def _spelled(fault: Fault, fields: tuple[Parameter, ...]) -> str:
    """Returns the sentence of a fault, with options in place of the names of parameters."""
    spelled = {field.name: field.param.kind.metavar if field.positional else field.option for field in fields}
    sentence = f"{spelled.get(fault.name, fault.name)}: {fault.why}" if fault.name else fault.why
    for name, text in spelled.items():
        sentence = sentence.replace(f"<{name}>", text)
    return sentence


@contextmanager
def _context(config: Path | None, by: By) -> Iterator[ActContext]:
    context = click.get_current_context()
    settings = load_settings(context, config)
    with open_database(context, config) as engine:
        yield ActContext(engine, settings, by, partial(_counted, settings, engine))


def _counted(settings: Settings, engine: Engine, name: str) -> str:
    return caller_as_counted(engine, settings, name)
