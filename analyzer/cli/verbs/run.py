"""`gatelock run`: the analyzer, until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import typer

from analyzer.cli.exit_codes import AWAY, FOUND, reporting_errors, usage_error
from analyzer.cli.options import ConfigOption, a_source_to_add, config_file

if TYPE_CHECKING:
    from analyzer.config.settings import Settings

log = logging.getLogger(__name__)

STOP_S = 8.0  # a database that hangs must not make whoever told us to stop resort to SIGKILL


def run(context: typer.Context, config: ConfigOption = None) -> None:
    """Count, judge and lock, until SIGTERM."""
    from analyzer.config.settings import load
    from analyzer.errors import AnalyzerError
    from analyzer.logs import set_up

    with reporting_errors():
        file = config_file(context, config)
        settings = load(file)
        if not settings.sources:
            raise usage_error(f"{file or 'no file'}: there is nothing to read: {a_source_to_add(file)}")
        set_up(settings.analyzer.log)
        log.info("configured by %s", file or "the environment", extra={"database": settings.database.shown})
        try:
            stored = _run(settings)
        except AnalyzerError:
            raise
        except Exception as bug:
            # Loudly, but through the log: a bare traceback may show what a log never does.
            log.critical("ended by a mistake of ours", exc_info=bug)
            raise typer.Exit(FOUND) from bug
        if not stored:
            raise typer.Exit(AWAY)
        log.info("stopped")


def _run(settings: Settings) -> bool:
    """Put everything together and work; whether all that was counted is stored. Raises what `told` turns into
    a sentence."""
    from importlib.metadata import version

    from analyzer.build import build, opened
    from analyzer.health import Health
    from analyzer.metrics import Metrics
    from analyzer.watchdog import Watchdog
    from analyzer.web.wiring import listening

    told_to_stop = stopping()
    with opened(settings) as engine:
        health = Health(Metrics(version("gatelock")), time.monotonic)
        if not any(source.topic for source in settings.sources):
            health.settle_s = 0.0
        daemon = build(settings, engine, health)
        problems = daemon.pipeline.source.problems
        with listening(settings, engine, health, problems):
            Watchdog(lambda: health.turned_s, told_to_stop.wait, _end, problems).start()
            return daemon.run(told_to_stop)


def _leave(told_to_stop: threading.Event) -> None:
    """Have the loop end; end the process when it does not. Offsets and counts are stored together, so
    that costs nothing but reading again."""
    told_to_stop.set()
    time.sleep(STOP_S)
    log.warning("the database does not answer: what was not stored is read again by the next analyzer")
    _end()


def _end() -> None:
    logging.shutdown()
    os._exit(AWAY)


def stopping() -> threading.Event:
    """Set by SIGTERM or SIGINT; the same signal once more ends the process at once."""
    told_to_stop = threading.Event()

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        log.info("stopping: what is counted is stored first", extra={"signal": signal.Signals(number).name})
        # In a thread: a handler interrupts the very one that may just hold the mutex of this event.
        threading.Thread(target=_leave, args=(told_to_stop,), daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return told_to_stop
