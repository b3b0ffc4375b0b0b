"""The command line `gatelock`: verbs act on the installation, nouns manage one kind of thing.

`command_table` names the commands; the module of each is imported when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

try:
    import click
except ImportError as missing:
    sys.exit(f"gatelock: {missing.name} is not installed; pip install 'gatelock[analyzer]'")

from analyzer.faces.cli.command_table import COMMANDS, Command, CommandGroup, Heading
from analyzer.faces.cli.described_options import CONFIG_HELP, SETTINGS, make_command
from analyzer.garbage_collector import rare_collections


class LazyGroup(click.Group):
    """A group whose commands are made when they are called. Its list of them comes from the table.

    Attributes:
        words: Those before the command; "" of all.
        headings: The commands, by headings; a title may be empty.
        default: The command that is meant where the first argument names none; "": none.
    """

    def __init__(self, words: str, headings: Iterable[Heading], default: str = "", **settings: Any) -> None:
        """`words` are those of the group, "" for all commands."""
        super().__init__(
            words.rpartition(" ")[2] or "gatelock",
            no_args_is_help=True,
            context_settings=SETTINGS,
            **settings,
        )
        self.words = words
        self.headings = tuple(headings)
        self.default = default
        self._entries = {entry.name: entry for heading in self.headings for entry in heading.entries}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names, in the order of the table."""
        return [*self._entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command with this name, made at its first use; None if there is none."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        if cmd_name not in self.commands:
            words = f"{self.words} {cmd_name}".strip()
            self.commands[cmd_name] = _made(entry, words)
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the line of each command, by headings."""
        width = max(map(len, self._entries))
        for heading in self.headings:
            with formatter.section(heading.title or "Commands"):
                formatter.write_dl([(entry.name.ljust(width), entry.line) for entry in heading.entries])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the default command in front of arguments that name none."""
        if self.default and args and args[0] not in (*self._entries, *ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def _made(entry: Command | CommandGroup, words: str) -> click.Command:
    if isinstance(entry, CommandGroup):
        text = entry.line
        if entry.default:
            text += f"\n\n`{entry.name} ...` is short for `{entry.name} {entry.default} ...`."
        return LazyGroup(words, [Heading("", entry.commands)], entry.default, help=text)
    command = _command(entry.name, entry.run or words)
    if not entry.one and not entry.instead:
        return command
    named = _command(entry.name, entry.one) if entry.one else None
    by_option = {option: _command(entry.name, run) for option, run in entry.instead}
    module = import_module(f"{__name__}.alternatives")
    made: click.Command = module.with_alternatives(command, named, by_option)
    return made


def _command(name: str, run: str) -> click.Command:
    """Returns the command of "module:function" below this package, or of the words of a row of acts."""
    module, _, function = run.partition(":")
    # What an import creates lives as long as the process: to scan it takes a seventh of the import.
    with rare_collections():
        if not function:
            return made_command(run)
        return make_command(name, getattr(import_module(f"{__name__}.{module}"), function))


def made_command(words: str) -> click.Command:
    """Returns the command of a row of the table of acts."""
    command: click.Command = import_module(f"{__name__}.made").command(words)
    return command


def _keep_config(context: click.Context, _param: click.Parameter, config: Path | None) -> None:
    context.obj = config


def _print_version(context: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested:
        from importlib.metadata import version  # what the help does not need

        from analyzer.faces.cli.output import say

        say(f"gatelock {version('gatelock')}")
        context.exit()


app = LazyGroup(
    "",
    COMMANDS,
    help="Counts the requests of every caller exactly, and locks callers that exceed their limit.",
    epilog="Exit codes: 0 success, 1 problem found, 2 wrong usage, 3 not reachable, 4 an error in gatelock.",
    params=[
        click.Option(
            ["--config"], type=click.Path(path_type=Path), callback=_keep_config, expose_value=False,
            help=CONFIG_HELP,
        ),
        click.Option(
            ["--version"], is_flag=True, is_eager=True, callback=_print_version, expose_value=False,
            help="Print the version and exit.",
        ),
    ],
)  # fmt: skip


def main() -> None:
    """Runs the command in `sys.argv`. No error reaches the terminal as a traceback."""
    try:
        app(prog_name="gatelock")
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into a sentence
        from analyzer.faces.cli.exit_codes import report_bug  # what a command without an error never needs

        sys.exit(report_bug(error))
