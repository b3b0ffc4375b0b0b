"""Commands against a server, with `--server URL`: by the API, with the output that they have elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import click
from click.exceptions import Exit

from analyzer.acting.act import Done, ListRow, Note
from analyzer.acting.foreseen import Foreseen
from analyzer.acting.parameters import Parameter, Switch, Whole
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import FOUND, UNREACHABLE, usage_error
from analyzer.faces.cli.output import say
from analyzer.faces.table_rows import TableRows
from gatekeeper.client import ApiConnection, ApiError, ConfirmationNeeded, ServerAway

SERVER_HELP = "Ask this server over HTTP instead of the database; the token is in $GATELOCK_TOKEN."
TOKEN_FILE_HELP = "A file with the token for --server."  # noqa: S105 - a sentence
CONFIRM = re.compile(r" Nothing was done: .*", re.DOTALL)

ServerOption = Annotated[str | None, Option("--server", metavar="URL", help=SERVER_HELP)]
TokenFileOption = Annotated[Path | None, Option("--token-file", metavar="FILE", help=TOKEN_FILE_HELP)]


def server_options() -> list[click.Parameter]:
    """Returns the options of a command that is made from the table of acts."""
    return [
        click.Option(["--server"], metavar="URL", help=SERVER_HELP),
        click.Option(["--token-file"], type=click.Path(path_type=Path), metavar="FILE", help=TOKEN_FILE_HELP),
    ]


@contextmanager
def asking(server: str, token_file: Path | None, fields: Iterable[Parameter] = ()) -> Iterator[ApiConnection]:
    """Yields the connection. Exits for a refusal with its sentence, in the words of the command.

    Exit codes are those of a command that asks the database: 1 where nothing is found, 2 for a refusal, 3 for
    a server that is away or whose database is.
    """
    try:
        connection = ApiConnection(server, token_file)
    except ValueError as error:
        raise usage_error(f"--server {error}") from error
    if connection.is_unencrypted:
        say(f"the token crosses the network to {connection.url} unencrypted: use https", err=True)
    with connection:
        try:
            yield connection
        except ServerAway as away:
            say(f"cannot reach the server: {away}", err=True)
            raise Exit(UNREACHABLE) from away
        except ApiError as error:
            say(_spelled(error.detail, fields), err=True)
            raise Exit(_exit_code(error.status)) from error


def _exit_code(status: int) -> int:
    if status == HTTPStatus.NOT_FOUND:
        return FOUND
    is_away = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
    return UNREACHABLE if is_away else 2


def _spelled(detail: str, fields: Iterable[Parameter]) -> str:
    """Returns a sentence of the API with options in place of parameters, and without its point."""
    for field in fields:
        name = field.param.kind.metavar if field.positional else field.option
        detail = detail.replace(f"`{field.name}`", name)
    return detail.removesuffix(".")


def done_by_server(
    connection: ApiConnection, path: str, values: Mapping[str, object], fields: Iterable[Parameter]
) -> Done | Foreseen:
    """Returns what an act has done, or will do once it is confirmed. Raises ApiError, ServerAway."""
    try:
        texts = connection.act(path, {**values, "texts": True})["texts"]
    except ConfirmationNeeded as needed:
        sentence = _spelled(CONFIRM.sub("", needed.detail), fields)
        return Foreseen([sentence[:1].lower() + sentence[1:]])
    return Done(texts["objects"], texts["sentences"], is_found=texts["is_found"])


def rows_of_server(
    connection: ApiConnection, path: str, values: Mapping[str, object]
) -> Iterator[ListRow | Note]:
    """Yields the rows of a list and its notes, as its function does. Raises ApiError, ServerAway."""
    last: list[Note] = []
    for number, page in enumerate(connection.pages(path, {**values, "texts": True})):
        notes = [(note.pop("is_first"), Note(**note)) for note in page["notes"]]
        if number == 0:
            yield from (note for is_first, note in notes if is_first)
        for item in page["items"]:
            yield ListRow((), item["fields"], item["cells"], item["is_wrong"])
        last = [note for is_first, note in notes if not is_first]
    yield from last


def parts_of(texts: Iterable[Any]) -> Iterator[str | TableRows]:
    """Yields sentences and tables that the API has answered with."""
    for text in texts:
        yield text if isinstance(text, str) else TableRows(text["columns"], text["rows"], text["empty"])


def json_values(fields: Iterable[Parameter], options: Mapping[str, Any]) -> dict[str, object]:
    """Returns what was written as values of a body. Exits with 2 for a file, which only commands read."""
    values: dict[str, object] = {}
    for field in fields:
        text = options[field.name]
        if text is None or text is False:
            continue
        kind = field.param.kind
        if not kind.schema():
            raise usage_error(f"{field.option} reads a file beside the database: leave out --server")
        values[field.name] = int(text) if isinstance(kind, Whole) else text
        if isinstance(kind, Switch):
            values[field.name] = True
    return values
