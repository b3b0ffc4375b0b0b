"""The job that looks for signals: it runs the checks of `gatelock doctor` and stores what stands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from analyzer.config.settings import Settings
from analyzer.faces.signals.doctor.examination import CHECKS, observed
from analyzer.faces.signals.signal_kinds import SIGNAL_KINDS, Observation, Signal, standing
from analyzer.faces.signals.signal_table import LOOK_EVERY_S, store_signals
from analyzer.faces.signals.status import installation_status
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.database.revisions import head
from analyzer.kernel.secrets import masked
from analyzer.maintenance.job_table import Work

log = logging.getLogger(__name__)


def signal_work(settings: Callable[[], Settings], engine: Engine) -> Work:
    """Returns the work of the job, by the settings that `settings` returns at each look."""
    watch = SignalWatch(engine, settings)
    return Work(watch.step, watch.done_elsewhere)


class SignalWatch:
    """Looks at an installation, step by step.

    Args:
        engine: Of the database.
        settings: Returns the settings in force in this process.
        uptime_s: Tells when a check that reads many rows is due again.
    """

    def __init__(
        self, engine: Engine, settings: Callable[[], Settings], uptime_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._uptime_s = uptime_s
        self._due_s = [float("-inf")] * len(CHECKS)
        self._last: list[Sequence[Observation]] = [()] * len(CHECKS)
        self._first_s: dict[tuple[str, str], float] = {}  # when each was first seen

    def step(self) -> int:
        """Looks once, stores and logs what began and what ended; returns 0: nothing is left to do.

        Tables of another version are not looked at. Raises StoreAway.
        """
        status = installation_status(self._engine, head())
        if status.revision != head():
            return 0
        now_s, installation = self._uptime_s(), observed(self._settings(), self._engine, status)
        for place, part in enumerate(CHECKS):
            if part.every_s and self._due_s[place] <= now_s:
                self._last[place] = list(part.check(installation))
                # The moments of looks decide about those of each look.
                self._due_s[place] = now_s + (part.every_s if part.every_s > LOOK_EVERY_S else 0.0)
        seen = standing(observation for observations in self._last for observation in observations)
        changes = store_signals(
            self._engine,
            [signal._replace(what=masked(signal.what)) for signal in self._lasting(seen, now_s)],
        )
        for signal in changes.began:
            log.warning("%s%s", signal.what, f"; {signal.cure}" if signal.cure else "")
        for signal in changes.ended:
            log.info("over: %s", signal.what)
        return 0

    def _lasting(self, seen: Sequence[Signal], now_s: float) -> list[Signal]:
        """Returns those that have lasted long enough for their kind."""
        self._first_s = {
            (signal.name, signal.subject): self._first_s.get((signal.name, signal.subject), now_s)
            for signal in seen
        }
        return [
            signal
            for signal in seen
            if now_s - self._first_s[signal.name, signal.subject] >= SIGNAL_KINDS[signal.name].after_s
        ]

    def done_elsewhere(self) -> None:
        """Forgets what was seen: another process looks, and this one begins again when it takes over."""
        self._due_s = [float("-inf")] * len(CHECKS)
