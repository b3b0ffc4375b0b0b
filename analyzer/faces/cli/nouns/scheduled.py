"""`gatelock upkeep jobs`: the work that one analyzer does for all, by a schedule."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.build import job_scheduler
from analyzer.faces.cli.described_options import Argument
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    load_settings,
    open_database,
)
from analyzer.faces.cli.output import outcome, say
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.signals.signal_watch import signal_work

if TYPE_CHECKING:
    pass


def run(
    context: Context,
    name: Annotated[str, Argument(metavar="JOB", help="A job of `gatelock upkeep jobs list`.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Run a job now, in this process, until nothing is left to do.

    It takes the lease of the job. Exit code 1 if another process has it, which is named, or if the job fails.
    Ctrl-C ends it between two steps: an analyzer does the rest.

    Example: gatelock upkeep jobs run prune-locks
    """
    with reporting_errors(), open_database(context, config):
        settings = load_settings(context, config)
        scheduler = job_scheduler(
            settings,
            Health(Metrics(version("gatelock")), time.monotonic),
            partial(signal_work, lambda: settings),
        )
        if name not in scheduler.job_names:
            raise usage_error(_unknown(name, scheduler.job_names))
        end = scheduler.run_now(name)
        if end.outcome is None:
            say(
                f"{end.holder} runs {name} at the moment: wait for its end (gatelock upkeep jobs list)",
                err=True,
            )
            raise Exit(FOUND)
        done = {"job": name, "outcome": end.outcome, "rows": end.rows, "error": end.error}
        sentence = f"{name} failed: {end.error}" if end.error else f"{name}: {end.outcome}, {end.rows:,} rows"
        outcome(sentence, done, as_json=json)
        if end.outcome != "done":
            raise Exit(FOUND)


def _unknown(name: str, names: Collection[str]) -> str:
    return f"{name} is not a job: use one of {', '.join(sorted(names))}"
