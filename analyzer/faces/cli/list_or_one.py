"""Commands that list things, or show the one that is named."""

from __future__ import annotations

import re
from typing import Any

import click
from click.core import ParameterSource

from analyzer.faces.cli.described_options import SETTINGS
from analyzer.faces.cli.exit_codes import usage_error

LAST = ("config", "json")  # options of all commands: below others
EXAMPLE = re.compile(r"\n\nExample: .*\Z", re.DOTALL)


def list_or_one(name: str, listing: click.Command, showing: click.Command) -> click.Command:
    """Returns the command that is `showing` where its argument is given, and `listing` where it is left out.

    It has the options of both. Exits with 2 for an option that belongs to the other one of them.

    Args:
        name: Of the command.
        listing: Without arguments.
        showing: With one argument, which names what is shown.
    """
    (argument,) = (param for param in showing.params if isinstance(param, click.Argument))
    options = {param.name: param for param in [*showing.params, *listing.params] if param is not argument}
    last = [options.pop(name) for name in LAST if name in options]
    options |= {param.name: param for param in last}
    metavar = (argument.metavar or argument.human_readable_name).strip("[]")

    def run(**values: Any) -> None:
        is_named = values[argument.name or ""] is not None
        called = showing if is_named else listing
        accepted = {param.name for param in called.params}
        context = click.get_current_context()
        for option, param in options.items():
            is_given = context.get_parameter_source(option or "") is ParameterSource.COMMANDLINE
            if is_given and option not in accepted:
                cure = f"leave out {metavar}" if is_named else f"write {metavar}"
                raise usage_error(f"{param.opts[-1]}: goes {'without' if is_named else 'with'} it: {cure}")
        assert called.callback is not None  # noqa: S101 - all commands have one
        called.callback(**{key: value for key, value in values.items() if key in accepted})

    about, example = EXAMPLE.sub("", listing.help or ""), EXAMPLE.search(listing.help or "")
    named = EXAMPLE.sub("", showing.help or "")
    return click.Command(
        name,
        context_settings=SETTINGS,
        callback=run,
        params=[
            click.Argument(
                [argument.name or ""], metavar=f"[{metavar}]", required=False, type=argument.type,
                help=getattr(argument, "help", None),
            ),
            *options.values(),
        ],
        help=f"{about}\n\nWith {metavar}: {named[:1].lower()}{named[1:]}{example[0] if example else ''}",
    )  # fmt: skip
