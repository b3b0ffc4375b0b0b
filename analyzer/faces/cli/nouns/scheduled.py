"""`gatelock jobs`: the work that one analyzer does for all, by a schedule."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    load_settings,
    open_database,
    parse_time,
    second_at,
)
from analyzer.faces.cli.output import say

if TYPE_CHECKING:
    pass

app = typer.Typer(no_args_is_help=True)


@app.callback()
def jobs() -> None:  # with a callback, typer gives the group its help
    """Work that one analyzer does for all, by a schedule."""


@app.command("list")
def list_(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show when each job runs, how it went last, and who runs it.

    A job without a last run has not been due since the tables were upgraded. Exit code 1 if the last run of a
    job failed. The jobs of the warden, which run each second, are in `gatelock doctor`.

    Example: gatelock jobs list --json
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.answers.job_answers import listed_jobs
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.maintenance.upkeep_jobs import schedules

        found = listed_jobs(engine, schedules(load_settings(context, config).retention.kept))
        if json:
            json_lines(job._asdict() for job in found)
        else:
            columns = ["job", "schedule", "began", "outcome", "rows", "next", "holder", "error"]
            table(columns, [job.cells for job in found], "")
        if any(job.last is not None and job.last["outcome"] == "failed" for job in found):
            raise typer.Exit(FOUND)


@app.command()
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="JOB", help="A job of `gatelock jobs list`.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Run a job now, in this process, until nothing is left to do.

    It takes the lease of the job. Exit code 1 if another process has it, which is named, or if the job fails.
    Ctrl-C ends it between two steps: an analyzer does the rest.

    Example: gatelock jobs run prune-locks
    """
    with reporting_errors(), open_database(context, config):
        import threading
        import time
        from importlib.metadata import version

        from analyzer.build import job_scheduler
        from analyzer.faces.cli.output import outcome
        from analyzer.faces.signals.health import Health
        from analyzer.faces.signals.metrics import Metrics

        settings = load_settings(context, config)
        scheduler = job_scheduler(settings, Health(Metrics(version("gatelock")), time.monotonic))
        jobs_by_name = {job.name: job for job in scheduler.jobs}
        job = jobs_by_name.get(name)
        if job is None:
            raise usage_error(_unknown(name, jobs_by_name))
        scheduler.jobs = []  # it keeps the lease
        stopping = threading.Event()
        scheduler.start(stopping)
        try:
            end = scheduler.runs.run(job, stopping.wait, is_asked=True)
        finally:
            scheduler.stop(1.0)
        if end.outcome is None:
            say(f"{end.holder} runs {name} at the moment: wait for its end (gatelock jobs list)", err=True)
            raise typer.Exit(FOUND)
        done = {"job": name, "outcome": end.outcome, "rows": end.rows, "error": end.error}
        what = f"{name} failed: {end.error}" if end.error else f"{name}: {end.outcome}, {end.rows:,} rows"
        outcome(what, done, as_json=json)
        if end.outcome != "done":
            raise typer.Exit(FOUND)


@app.command()
def history(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Of this job alone.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    since: SinceOption = None,
) -> None:
    """Show the runs of jobs, the latest first.

    Of runs in a row that found nothing to do, the last one is kept. Runs are kept for `[retention] jobs`.

    Example: gatelock jobs history roll-up --since 7d
    """
    begin = parse_time(since)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.answers.job_answers import run_fields
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.kernel.jobs.job_runs import job_history
        from analyzer.maintenance.upkeep_jobs import schedules

        known = schedules(load_settings(context, config).retention.kept)
        if name is not None and name not in known:
            raise usage_error(_unknown(name, known))
        found = (run_fields(run) for run in job_history(engine, name, second_at(engine, begin) * 1000))
        if json:
            json_lines(found)
        else:
            columns = ["job", "scheduled", "began", "seconds", "outcome", "rows", "owner", "error"]
            rows = ([fields[column] for column in columns] for fields in found)
            table(columns, rows, "no run is stored")


def _unknown(name: str, known: Collection[str]) -> str:
    return f"{name} is not a job: use one of {', '.join(sorted(known))}"
