"""`gatelock policies simulate`: whom policies would have locked, from stored counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from click import Context
from click.exceptions import Exit
from rich.console import Console
from rich.progress import Progress as ProgressBar
from rich.text import Text

from analyzer.acting.parameters import Fault, OfText, Param, Parameter
from analyzer.config.settings import find, load
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import (
    TIME_FORMS,
    ConfigOption,
    JsonOption,
    config_file,
    load_settings,
    open_database,
    parse_time,
    second_at,
)
from analyzer.faces.cli.output import json_lines, say, show
from analyzer.faces.cli.server_calls import ServerOption, TokenFileOption, asking, parts_of
from analyzer.faces.simulation_report import ASSUMPTIONS, SimulationReport, chosen_policies, is_refused
from analyzer.forecast.simulation.comparison import compare
from analyzer.judging.sql.plans import plan_in_force

if TYPE_CHECKING:
    from analyzer.forecast.simulation.policy_simulation import Progress
    from analyzer.plan.plan import Plan
    from analyzer.plan.policies import Policy

POLICY = Parameter("policy", "policy", Param(OfText(), "Only this policy.", "daily"))
LIMIT = Parameter("limit", "limit", Param(OfText(), "The policy with this limit.", "5000"))
FileArgument = Annotated[
    Path | None,
    Argument(
        metavar="[FILE]",
        help="A gatelock.toml, or a file with nothing but [[policies]] and [[meters]]. Default: the "
        "configuration.",
    ),
]


def simulate(
    context: Context,
    file: FileArgument = None,
    config: ConfigOption = None,
    since: Annotated[str, Option("--since", "--from", metavar="TIME", help=f"Begin: {TIME_FORMS}.")] = "30d",
    policy: Annotated[str | None, Option("--policy", metavar="NAME", help="Only this policy.")] = None,
    limit: Annotated[
        str | None,
        Option(
            "--limit", metavar="AMOUNT", help="The policy with this limit: 5000, 2 GiB, 1h. Needs --policy."
        ),
    ] = None,
    show_all: Annotated[
        bool, Option("--all", help="All callers, also those whose locks are as before.")
    ] = False,
    server: ServerOption = None,
    token_file: TokenFileOption = None,
    json: JsonOption = False,
) -> None:
    """Show whom policies would have locked, when and for how long.

    Nothing is changed. Counts that are stored are judged as they were counted, beside the policy of this name
    that is in force. Windows that the stored counts are too wide for are refused. Exit code 1 if a policy
    cannot be simulated.

    Example: gatelock policies simulate --policy daily --limit 5000
    """
    if server is not None:
        parse_time(since)
        asked = {"policy": policy, "limit": limit, "since": since}
        with reporting_errors(), asking(server, token_file, [POLICY, LIMIT]) as connection:
            text = None if file is None else file.read_text()
            answer = connection.act("/v1/policies/simulate", {**asked, "policies": text, "texts": True})
            _print_answer(answer, show_all=show_all, as_json=json)
        return
    with reporting_errors():
        begin = parse_time(since)
        if limit is not None and policy is None:
            raise usage_error("--limit needs --policy, the name of the policy that shall have this limit")
        proposed = _proposed(context, file, config)
        with open_database(context, config) as engine:
            plan, from_s = plan_in_force(engine), second_at(engine, begin)
            is_of_file = file is not None or limit is None
            among = proposed if is_of_file else plan or proposed
            reports = []
            for chosen in _chosen(among, policy, limit):
                with _progress_bar(chosen.name) as progress:
                    comparison = compare(engine, chosen, among.meters, plan, from_s, progress)
                reports.append(SimulationReport(comparison))
        if json:
            json_lines(report.as_object() for report in reports)
        else:
            for report in reports:
                show(report.parts(show_all=show_all))
            say(ASSUMPTIONS)
        if is_refused(reports):
            raise Exit(FOUND)


def _print_answer(answer: Mapping[str, Any], *, show_all: bool, as_json: bool) -> None:
    """Prints what a server has simulated. Exits with 1 if a policy cannot be."""
    if as_json:
        json_lines(answer["policies"])
    else:
        for parts in answer["texts"]["all" if show_all else "parts"]:
            show(parts_of(parts))
        say(ASSUMPTIONS)
    if answer["texts"]["is_refused"]:
        raise Exit(FOUND)


def _proposed(context: Context, file: Path | None, config: Path | None) -> Plan:
    """Returns the plan of a file, or of the configuration. Raises ConfigInvalid, ConfigMissing."""
    if file is None:
        return load_settings(context, config).plan()
    return load(find(file), completed_by=config_file(context, config)).plan()


def _chosen(among: Plan, name: str | None, limit: str | None) -> Sequence[Policy]:
    """Returns the policies to simulate. Exits with 2 if there are none."""
    try:
        return chosen_policies(among, name, limit)
    except Fault as fault:
        sentence = fault.why.replace("<policy>", "--policy")
        raise usage_error(f"--{fault.name} {sentence}" if fault.name else sentence) from fault


@contextmanager
def _progress_bar(name: str) -> Iterator[Progress]:
    """Shows how far a policy is on standard error, if that is a terminal; it is gone afterwards."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return

    with ProgressBar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(Text(name).plain.replace("[", "\\["), total=None)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)
