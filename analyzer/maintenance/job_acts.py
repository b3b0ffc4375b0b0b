"""Lists of jobs, of their runs and of the audit log."""

from __future__ import annotations

from typing import Annotated

from analyzer.acting.act import ActContext, Listing, ListRow
from analyzer.acting.parameters import OfText, Param, Since
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.clock import millis
from analyzer.kernel.jobs.job_runs import job_history
from analyzer.maintenance.job_answers import listed_jobs, run_fields
from analyzer.maintenance.job_table import schedules
from gatekeeper.feed.feed_json import time_text


def list_jobs(context: ActContext) -> Listing:
    """Show when each job runs, how it went last, and who runs it.

    A job without a last run was never due. Of those that run each second a run lasts until the analyzer
    ends. Exit code 1 if the last run of a job failed.
    """
    for job in sorted(listed_jobs(context.engine, schedules(context.settings.retention.kept))):
        has_failed = job.last is not None and job.last["outcome"] == "failed"
        yield ListRow((job.job,), job._asdict(), job.cells, has_failed)


def list_runs(
    context: ActContext,
    job: Annotated[str, Param(OfText(metavar="JOB"), "Of this job alone.", "roll-up")] | None = None,
    *,
    since: Since | None = None,
) -> Listing:
    """Show the runs of jobs, the latest first.

    Of runs in a row that found nothing to do, the last one is kept. Runs are kept for `[retention] jobs`.
    """
    context.require_name("job", job, schedules(context.settings.retention.kept))
    since_s = context.second("since", since) or 0
    for run in job_history(context.engine, job, since_s * 1000):
        yield ListRow((-run.began_ms, run.job, -run.number), run_fields(run))


def list_events(context: ActContext, *, since: Since | None = None) -> Listing:
    """Show what operators did, and what changed the plan, the latest first.

    Lists for each event its time, the operator or analyzer, the act, its object, and the reason or the
    difference. Sources that were renamed in a configuration are listed, too.
    """
    since_s = context.second("since", since) or 0
    until_ms = None if context.after is None else -int(context.after[0])
    for event in entries(context.engine, since_s * 1000, until_ms):
        names = ("at", "who", "act", "about", "why")
        fields = dict(zip(names, (time_text(event.at), *event[1:5]), strict=True))
        yield ListRow((-millis(event.at), event.id), fields)
