"""Options and arguments of commands: annotations of a function's parameters, of which click's are made.

    def show(name: Annotated[str, Argument(metavar="NAME", help="Its name.")]) -> None: ...

The type says how a text is read: `bool` is a switch, an enumeration lists its words, a list may be repeated.
A parameter without a default has to be given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import click

CONFIG_HELP = "TOML file; default: $GATELOCK_CONFIG, ./gatelock.toml, /etc/gatelock/gatelock.toml."
SETTINGS = {"help_option_names": ["-h", "--help"]}


class Option:
    """An option: its names, by default that of the parameter, its help, and the bounds of a number.

    `words` are the keys of a table, of which a text must be one.
    """

    def __init__(
        self,
        *names: str,
        help: str,  # noqa: A002 - click's name
        metavar: str | None = None,
        min: float | None = None,  # noqa: A002 - click's name
        max: float | None = None,  # noqa: A002 - click's name
        words: Iterable[Mapping[str, object]] = (),
    ) -> None:
        self.words = words
        self.names = names
        self.help = help
        self.metavar = metavar
        self.bounds = min, max


class Argument:
    """A positional argument: its name in the usage, and its help."""

    def __init__(self, *, metavar: str, help: str) -> None:  # noqa: A002 - click's name
        self.metavar = metavar
        self.help = help


class LocalCommand(click.Command):
    """A command that asks no server: it needs the database, files or Kafka itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Ends the command if it is asked to ask a server."""
        if any(arg == "--server" or arg.startswith("--server=") for arg in args):
            words = ctx.command_path.removeprefix("gatelock ")
            raise click.UsageError(f"`{words}` does not ask a server: run it beside the database, without it")
        return super().parse_args(ctx, args)


class Words(click.Choice[Any]):
    """The words of an enumeration; the value is its member."""

    def __init__(self, words: type[StrEnum]) -> None:
        super().__init__([word.value for word in words])
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._words(super().convert(getattr(value, "value", value), param, ctx))


def make_command(name: str, run: Callable[..., None]) -> click.Command:
    """Returns the command that calls `run`, with its docstring as help; a parameter `context` gets click's.

    Raises TypeError for a parameter without an annotation of this module.
    """
    hints = get_type_hints(run, include_extras=True)
    parameters = list(inspect.signature(run).parameters.values())
    callback: Callable[..., None] = run
    if parameters and parameters[0].name == "context":
        callback = partial(_with_context, run)
        del parameters[0]
    command = click.Command if "server" in hints else LocalCommand
    return command(
        name,
        context_settings=SETTINGS,
        callback=callback,
        params=[_made(parameter, hints[parameter.name]) for parameter in parameters],
        help=inspect.cleandoc(run.__doc__ or ""),
    )


def _with_context(run: Callable[..., None], **values: Any) -> None:
    run(click.get_current_context(), **values)


def _made(parameter: inspect.Parameter, hint: Any) -> click.Parameter:
    """Returns click's parameter for one of a function."""
    kind, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    mark = next((mark for mark in marks if isinstance(mark, Option | Argument)), None)
    if mark is None:
        raise TypeError(f"{parameter.name}: write Annotated[..., Option(...)] or Argument(...)")
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    is_list = get_origin(kind) is list
    if is_list:
        (kind,) = get_args(kind)
    required = parameter.default is parameter.empty
    settings: dict[str, Any] = {"required": required, "metavar": mark.metavar}
    if not required and not is_list:
        settings["default"] = getattr(parameter.default, "value", parameter.default)
    if isinstance(mark, Argument):
        nargs = -1 if is_list else 1
        return click.Argument([parameter.name], type=_type(kind), nargs=nargs, help=mark.help, **settings)
    names = mark.names or (f"--{parameter.name.strip('_').replace('_', '-')}",)
    settings |= {"help": mark.help, "show_default": bool(settings.get("default"))}
    if kind is bool:
        return click.Option([parameter.name, *names], is_flag=True, **settings)
    of_table = [word for table in mark.words for word in table]
    type_ = click.Choice(of_table) if of_table else _type(kind, *mark.bounds)
    return click.Option([parameter.name, *names], type=type_, multiple=is_list, **settings)


def _type(kind: Any, least: Any = None, most: Any = None) -> Any:
    """Returns click's type for one of Python."""
    if kind is Path:
        return click.Path(path_type=Path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Words(kind)
    if (least, most) != (None, None):
        return click.IntRange(least, most) if kind is int else click.FloatRange(least, most)
    return kind
