"""The commands: under which heading, the line of each in lists, and the function that it calls.

A function's module is imported when its command is called, so that help and completion import none. Commands
that are rows of the table of acts have their lines there.
"""

from __future__ import annotations

from typing import NamedTuple

from analyzer.faces.acts import ACTS


class Command(NamedTuple):
    """A command.

    Attributes:
        name: Its word.
        run: Its function, as "module:function" below this package; "": it is made from its row of acts.
        line: What it does.
        one: The function, or the words of the row of acts, that shows the one thing whose name follows; "":
            the command takes no name.
        instead: The switches with which it does something else, each with the function, or the words of the
            row of acts, that does it.
    """

    name: str
    run: str
    line: str
    one: str = ""
    instead: tuple[tuple[str, str], ...] = ()


class CommandGroup(NamedTuple):
    """Commands about one kind of thing.

    Attributes:
        name: The word before that of the command.
        line: What it is about.
        commands: In the order of its help.
        default: The command that is meant where none is named; "": none.
    """

    name: str
    line: str
    commands: tuple[Command | CommandGroup, ...]
    default: str = ""


class Heading(NamedTuple):
    """A part of the list of commands."""

    title: str
    entries: tuple[Command | CommandGroup, ...]


LINES = {row.words: row.line for row in ACTS}


def _made(group: str, *names: str) -> tuple[Command, ...]:
    """Returns the commands of rows of the table of acts."""
    return tuple(Command(name, "", LINES[f"{group} {name}"]) for name in names)


LOOK_AND_TRY = (
    Command(
        "look", "verbs.log_preview:look", "Show the callers of a log, and those that a limit would lock."
    ),
    Command("demo", "verbs.demo:demo", "Show a gate close, within a minute."),
    Command("init", "verbs.init:init", "Write a configuration to begin with."),
)
RUN = (
    Command("check", "verbs.check:check", "Find every fault of the configuration."),
    Command("run", "verbs.run:run", "Count, judge and lock, until SIGTERM."),
    Command("serve", "verbs.serve:serve", "Serve the locks over HTTP, until SIGTERM."),
    Command("doctor", "verbs.doctor:doctor", "Check a running installation for common problems."),
)
CALLERS_AND_LIMITS = (
    Command("explain", "verbs.explain:explain", "Say why a caller is locked, or why not."),
    Command("top", "verbs.top:top", "Show who sends how much now, and lock or unlock a caller."),
    Command("usage", "verbs.usage:usage", "Show what was counted."),
    CommandGroup(
        "locks", "Locks in force, notices, and the switch that opens every gate.",
        (
            Command(
                "list", "", "Show the locks in force, or the notices.",
                instead=(("--notices", "locks notices"),),
            ),
            *_made("locks", "unlock", "lock", "extend", "suspend", "resume"),
        ),
    ),
    CommandGroup(
        "callers", "Facts about callers, other limits, exemptions.",
        (
            Command(
                "list", "", "Show the callers with a plan, tenant, zone or anchor; or the overrides.",
                "nouns.callers:show", (("--overrides", "callers overrides"),),
            ),
            *_made("callers", "set", "limit", "allow", "end", "forget"),
        ),
    ),
    CommandGroup(
        "policies", "Policies in force, and the configuration they come from.",
        (
            Command("list", "", LINES["policies list"], "nouns.policies:show"),
            Command(
                "simulate", "verbs.simulate:simulate",
                "Show whom policies would have locked, when and for how long.",
            ),
            Command(
                "apply", "nouns.policies:apply", "Put the configuration in force now, for all analyzers."
            ),
            *_made("policies", "enforce"),
        ),
    ),
)  # fmt: skip
ALERTS = CommandGroup(
    "alerts", "Messages about locks, thresholds, signals and closed days, and where they are sent.",
    (
        Command(
            "list", "", "Show the destinations and contacts, or the messages.",
            instead=(("--messages", "alerts messages"),),
        ),
        *_made("alerts", "test", "resend", "contact", "remove"),
    ),
)  # fmt: skip
BILLING = CommandGroup(
    "billing", "Reports for invoices, closed days, and the proof of both.",
    (
        CommandGroup(
            "report", "What was counted of closed days, for invoices.",
            (
                Command("write", "verbs.report:write", "Write what was counted of closed days."),
                Command(
                    "statement", "verbs.report_statement:statement",
                    "Write a customer's statement as a page to print.",
                ),
                Command(
                    "send", "verbs.report_sending:send",
                    "Deliver the usage of closed days to a billing service.",
                ),
                Command(
                    "reconcile", "verbs.report_reconciling:reconcile",
                    "Compare what a billing service has with what it has acknowledged.",
                ),
            ),
            default="write",
        ),
        CommandGroup(
            "days", "Closed days, what they wait for, and corrections.",
            (
                Command(
                    "list", "nouns.days:list_",
                    "Show which days are closed, and what was booked and sent since.", "nouns.days:show",
                ),
                Command("close", "nouns.days:close", "Close a day now, without waiting for its grace."),
                Command("correct", "nouns.days:correct", "Add an amount to a closed day, or take it away."),
            ),
        ),
        Command("audit", "verbs.audit:audit", "Compare everything that was counted with itself."),
    ),
)  # fmt: skip
UPKEEP = CommandGroup(
    "upkeep", "Tables, sources, records, gates, tokens, jobs.",
    (
        CommandGroup(
            "db", "The version of the database's tables.",
            (
                Command(
                    "upgrade", "nouns.db:upgrade",
                    "Upgrade the tables to this program's version, or check them.",
                    instead=(("--check", "nouns.db:check"),),
                ),
            ),
        ),
        CommandGroup(
            "sources", "Partitions that are read, how far behind, and the gaps that stop them.",
            (
                Command(
                    "list", "", "Show every partition that was ever read, or the gaps.",
                    instead=(("--gaps", "nouns.gaps:list_"),),
                ),
                Command("resume", "nouns.stopped_partitions:resume", "Continue a stopped partition."),
                *_made("upkeep sources", "retire"),
            ),
        ),
        CommandGroup(
            "rejects", "Records that could not be read, and counting them after a repair.",
            (
                Command(
                    "list", "nouns.rejects:list_", "Show rejected records, the latest first.",
                    "nouns.rejects:show",
                ),
                Command("retry", "nouns.rejects:retry", "Count rejected records that can be read now."),
            ),
        ),
        Command("import", "verbs.import_:import_", "Count the records of complete files, once."),
        CommandGroup(
            "replay", "Count logs again by the plan in force, and swap it in.",
            (
                Command("start", "nouns.replays:start", "Count logs again, beside the live counts."),
                Command(
                    "swap", "nouns.replays:swap", "Put the counts of a replay in force, in one transaction."
                ),
                Command("drop", "nouns.replays:drop", "Give up a replay that is not swapped in."),
                Command(
                    "list", "nouns.replays:list_", "Show the replays, how far they are, and who asked.",
                    "nouns.replays:compare",
                ),
            ),
        ),
        CommandGroup(
            "gates", "Gates that report their status.", _made("upkeep gates", "list", "forget"),
        ),
        CommandGroup(
            "tokens", "Tokens for access over HTTP.",
            (
                Command("create", "nouns.tokens:create", "Create a token; it is shown only once."),
                Command("list", "nouns.tokens:list_", "Show the tokens, without their values."),
                Command(
                    "revoke", "nouns.tokens:revoke", "Revoke a token; servers reject it within two seconds."
                ),
            ),
        ),
        CommandGroup(
            "jobs", "Work that one analyzer does for all, by a schedule.",
            (
                Command("list", "", LINES["upkeep jobs list"], "upkeep jobs history"),
                Command(
                    "run", "nouns.scheduled:run",
                    "Run a job now, in this process, until nothing is left to do.",
                ),
            ),
        ),
        CommandGroup(
            "events", "Acts of operators, and changes of the plan.", _made("upkeep events", "list"),
        ),
    ),
)  # fmt: skip

RESTORE = CommandGroup(
    "restore", "After a backup was restored: what is missing, and closing days as they were billed.",
    (
        Command("check", "nouns.restore:check", "Say what a restored database lacks."),
        Command("days", "nouns.restore:days", "Close days again, each with the cut that it had."),
    ),
)  # fmt: skip
BACKUP = Command("backup", "verbs.backup:backup", "Write the database and the configuration into a folder.")

COMMANDS = (
    Heading("Look and try", LOOK_AND_TRY),
    Heading("Run", RUN),
    Heading("Callers and limits", CALLERS_AND_LIMITS),
    Heading("Billing", (BILLING,)),
    Heading("Upkeep", (ALERTS, UPKEEP, BACKUP, RESTORE)),
)
