"""Commands that do something else where a name or an option is given: `list NAME`, `list --notices`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from analyzer.faces.cli.described_options import SETTINGS, LocalCommand
from analyzer.faces.cli.exit_codes import usage_error

LAST = ("config", "json")  # options of all commands: below others
EXAMPLE = re.compile(r"\n\nExample: .*\Z", re.DOTALL)


def with_alternatives(
    main: click.Command, named: click.Command | None, by_option: Mapping[str, click.Command]
) -> click.Command:
    """Returns the command that is `main` unless a name or an option selects another.

    It has the options of all. Exits with 2 for an option that the selected command does not have.

    Args:
        main: Without arguments.
        named: Where its argument is given; None: no name is taken.
        by_option: Where the switch is given that stands before it, such as `--notices`.
    """
    others: dict[click.Parameter, click.Command] = {}
    if named is not None:
        others[_optional(*_arguments(named))] = named
    for option, command in by_option.items():
        others[click.Option([option], is_flag=True, help=(command.help or "").partition("\n")[0])] = command
    params = _joined(main, others)

    def run(**values: Any) -> None:
        chosen = next((param for param in others if values[param.name or ""] not in (None, False)), None)
        called = main if chosen is None else others[chosen]
        context = click.get_current_context()
        for param in params:
            is_given = context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
            if is_given and param is not chosen and param.name not in _names(called):
                raise usage_error(f"{_spelled(param)}: {_why_not(param, chosen, main, others)}")
        assert called.callback is not None  # noqa: S101 - all commands have one
        called.callback(**{name: value for name, value in values.items() if name in _names(called)})

    example = EXAMPLE.search(main.help or "")
    about = [EXAMPLE.sub("", main.help or "")]
    for param, command in others.items():
        text = EXAMPLE.sub("", command.help or "")
        about.append(f"With {_spelled(param)}: {text[:1].lower()}{text[1:]}")
    made = click.Command if any(param.name == "server" for param in params) else LocalCommand
    return made(
        main.name,
        context_settings=SETTINGS,
        callback=run,
        params=params,
        help="\n\n".join(about) + (example[0] if example else ""),
    )


def _why_not(
    param: click.Parameter,
    chosen: click.Parameter | None,
    main: click.Command,
    others: Mapping[click.Parameter, click.Command],
) -> str:
    """Returns why a parameter that is given has no effect: what else it needs, or what it excludes."""
    if chosen is not None and (param in others or param.name in _names(main)):
        return f"does not work with {_spelled(chosen)}"
    needed = (other for other, command in others.items() if param.name in _names(command))
    return f"works only with {' or '.join(map(_spelled, needed))}"


def _arguments(command: click.Command) -> Iterable[click.Argument]:
    return (param for param in command.params if isinstance(param, click.Argument))


def _optional(argument: click.Argument) -> click.Argument:
    """Returns an argument that may be left out."""
    metavar = (argument.metavar or argument.human_readable_name).strip("[]")
    return click.Argument(
        [argument.name or ""], metavar=f"[{metavar}]", required=False, type=argument.type,
        help=getattr(argument, "help", None),
    )  # fmt: skip


def _joined(main: click.Command, others: Mapping[click.Parameter, click.Command]) -> list[click.Parameter]:
    """Returns the parameters of all commands, each once, a switch in front of what works only with it."""
    joined = {param.name: param for param in main.params}
    for switch, command in others.items():
        joined[switch.name] = switch
        joined |= {param.name: param for param in command.params if param.name not in joined}
    return sorted(joined.values(), key=lambda param: param.name in LAST)


def _names(command: click.Command) -> set[str | None]:
    return {param.name for param in command.params}


def _spelled(param: click.Parameter) -> str:
    """Returns how a parameter is written: "CALLER", "--notices"."""
    return (param.metavar or "").strip("[]") if isinstance(param, click.Argument) else param.opts[-1]
