"""`gatelock run`: the analyzer, until a signal stops it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.build import build, opened
from analyzer.config.file_watch import FileWatch
from analyzer.config.reload import ConfigurationReader, reading_again
from analyzer.counting.measured_delays import RecentDelays
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import BUG, UNREACHABLE, reporting_errors
from analyzer.faces.cli.options import ConfigOption, config_file, load_to_run
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.signals.signal_watch import signal_work
from analyzer.faces.signals.telemetry_switch import telemetry
from analyzer.faces.wiring import web_application
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.logs import set_up
from analyzer.kernel.thread_clocks import WorkClock, own_cpu_clock
from analyzer.watchdog import TICK_S, WAITING_CPU_S, Watchdog

if TYPE_CHECKING:
    from analyzer.config.settings import Settings

log = logging.getLogger(__name__)

STOP_S = 8.0  # shorter than the usual 10 s until SIGKILL, also if the database hangs
# For a process that still computes: shorter than the 30 s of Kubernetes. An earlier SIGKILL costs no more
# than ending here.
STOP_SLOW_S = 25.0


def run(
    context: Context,
    config: ConfigOption = None,
    apply: Annotated[
        bool, Option("--apply", help="Put the whole configuration in force, as `policies apply`.")
    ] = False,
) -> None:
    """Count, judge and lock, until SIGTERM.

    Reads every source of the configuration, and serves the locks over HTTP. A configuration that was edited
    since the last start comes in force with the first records. The file is read again when it changes, and on
    SIGHUP; a file with a fault changes nothing. Stores what it has counted before
    it stops; a second SIGTERM stops it at once.

    Example: gatelock run --config /etc/gatelock/gatelock.toml
    """
    requests = reload_requests()

    with reporting_errors():
        file = config_file(context, config)
        watch = FileWatch(file)
        settings = load_to_run(file)
        set_up(settings.analyzer.log)
        log.info("configured by %s", file or "the environment", extra={"database": settings.database.shown})
        try:
            is_stored = _run(settings, watch, requests, is_applied=apply)
        except AnalyzerError:
            raise
        except Exception as bug:
            # Through the log, which masks secrets; a bare traceback would show them.
            log.critical("stopped by an internal error", exc_info=bug)
            raise Exit(BUG) from bug
        if not is_stored:
            raise Exit(UNREACHABLE)
        log.info("stopped")


def _run(settings: Settings, watch: FileWatch, requests: SimpleQueue[bool], *, is_applied: bool) -> bool:
    """Builds the analyzer and runs it; returns whether the database could be reached for the last flush.

    Raises AnalyzerError.
    """
    work = WorkClock()
    work.add(own_cpu_clock())
    stop = stop_event(work)
    with opened(settings) as engine:
        health = Health(Metrics(version("gatelock")), time.monotonic)
        health.recent_delays = RecentDelays(settings.analyzer.flush_every)
        if not any(source.topic for source in settings.sources):
            health.assignment_grace_s = 0.0
        reader = ConfigurationReader(watch, settings, partial(load_to_run, watch.file), health)
        look = partial(signal_work, lambda: reader.latest)
        daemon = build(settings, engine, health, is_applied=is_applied, reader=reader, watch=look)
        work.add(daemon.pipeline.executor.cpu_s)

        def problems() -> Mapping[str, str]:
            return daemon.pipeline.source.problems()

        with (
            telemetry(settings.analyzer.name, health, engine, problems),
            web_application(settings, engine, health, problems),
            reading_again(reader, requests),
        ):
            Watchdog(lambda: health.loop_completed_s, stop.wait, _end_process, problems, work).start()
            return daemon.run(stop)


def reload_requests() -> SimpleQueue[bool]:
    """A queue that gets True for each SIGHUP from here on, which would otherwise end the process."""
    requests: SimpleQueue[bool] = SimpleQueue()
    signal.signal(signal.SIGHUP, lambda *_: requests.put(True))
    return requests


def stop_event(cpu_s: Callable[[], float] = lambda: 0.0) -> threading.Event:
    """An event that SIGTERM or SIGINT sets; the same signal once more ends the process at once.

    `cpu_s` is the CPU time of what has to stop: while it computes it has longer, see `_stop`.
    """
    event = threading.Event()

    def handle(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        log.info("stopping: storing what is counted", extra={"signal": signal.Signals(number).name})
        # In a thread: the handler may interrupt the thread that holds this event's mutex.
        threading.Thread(target=_stop, args=(event, cpu_s), daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return event


def _stop(event: threading.Event, cpu_s: Callable[[], float]) -> None:
    """Stops the loop, and ends the process if it does not stop. Offsets and counts are stored together, so
    the next analyzer only has to read some records again."""
    event.set()
    waited_s, used_s = 0.0, 0.0
    while waited_s < (STOP_S if used_s < WAITING_CPU_S else STOP_SLOW_S):
        before_s = cpu_s()
        time.sleep(TICK_S)
        waited_s, used_s = waited_s + TICK_S, cpu_s() - before_s
    log.warning("not stopped within %.0f s: the next analyzer reads again what was not stored", waited_s)
    _end_process()


def _end_process() -> None:
    logging.shutdown()
    os._exit(UNREACHABLE)
