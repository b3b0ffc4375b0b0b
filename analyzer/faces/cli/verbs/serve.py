"""`gatelock serve`: serves the lock feed over HTTP, without counting."""

from __future__ import annotations

import logging
import time
from functools import partial
from importlib.metadata import version

from click import Context

from analyzer.build import job_scheduler, opened
from analyzer.config.settings import load
from analyzer.faces.cli.exit_codes import reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, config_file
from analyzer.faces.cli.verbs.run import stop_event
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.signals.signal_watch import signal_work
from analyzer.faces.wiring import web_application
from analyzer.kernel.logs import set_up
from analyzer.maintenance.job_table import ALERTS, SIGNALS

log = logging.getLogger(__name__)

LOOP_EVERY_S = 1.0
JOBS_END_S = 5.0
SERVED = (SIGNALS, ALERTS)  # the lanes of jobs that need no analyzer


def serve(context: Context, config: ConfigOption = None) -> None:
    """Serve the locks over HTTP, until SIGTERM.

    For gates that are far from the analyzers, or to share the load. Needs the database, but not Kafka. Also
    looks for problems and sends alerts, so that they leave the house when no analyzer runs.

    Example: gatelock serve --config /etc/gatelock/gatelock.toml
    """
    with reporting_errors():
        file = config_file(context, config)
        settings = load(file)
        if settings.analyzer.listen is None:
            raise usage_error(
                f'{file or "the environment"}: [analyzer] http is "off": write the address to serve at, '
                'such as http = "127.0.0.1:8321"'
            )
        set_up(settings.analyzer.log)
        log.info("configured by %s", file or "the environment", extra={"database": settings.database.shown})
        stop = stop_event()
        # A server is assigned no partitions: it is ready as soon as the database is.
        health = Health(Metrics(version("gatelock")), time.monotonic, assignment_grace_s=0.0)
        with opened(settings) as engine, web_application(settings, engine, health, dict):
            jobs = job_scheduler(settings, health, partial(signal_work, lambda: settings), SERVED)
            jobs.start(stop)
            health.loop_completed()
            while not stop.wait(LOOP_EVERY_S):
                health.loop_completed()
            jobs.stop(JOBS_END_S)
    log.info("stopped")
