"""Checks of delays: those that the living analyzers have measured in the last minutes."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.counting.measured_delays import alarms
from analyzer.delays.exceeded_overshoots import recent_overshoots
from analyzer.delays.partition_delays import measured_by_owner
from analyzer.faces.signals.doctor.observations import Installation, Observation

DELAY_CURES = {
    "shipping-delay": "look at the shipper between the log and Kafka: its buffers, its retries, its machine",
    "clock-skew": "synchronise these machines (NTP): locks are judged by the database's clock",
}
LATE_CURE = (
    "compare the parts of the delay: `gatelock check`; see that gates ask for the caller: "
    "`gatelock explain CALLER`, and that the log shows what they deny: `deny_if`"
)

COUNTING_CURE = (
    "look at the analyzer's log of that time; a second analyzer takes over from one that stops. The line ends"
    " an hour after the last of these locks"
)


def late_locks(installation: Installation) -> Iterator[Observation]:
    """Yields for each cause the locks of the last hour whose overshoot exceeds what `gatelock check` says."""
    for late in recent_overshoots(installation.engine, installation.settings.analyzer.flush_every):
        yield Observation("wrong", str(late), COUNTING_CURE if late.cause else LATE_CURE)


def delays_and_clocks(installation: Installation) -> Iterator[Observation]:
    """Yields the shipping delay of each source, and the alarms of each analyzer."""
    for owner, measured in measured_by_owner(installation.engine).items():
        sentences = alarms(measured, installation.settings.delays.limits)
        for name, sentence in sentences.items():
            yield Observation("wrong", f"{owner}: {sentence}", DELAY_CURES[name])
        for source, delay in measured.sources.items() if not sentences else ():
            yield Observation(
                "fine",
                f"{source}: records reach Kafka {delay.p50_ms / 1000:g} s after their requests, 99 % of them "
                f"within {delay.p99_ms / 1000:g} s, by {owner}",
            )
