"""What a demonstration showed, from the answers that everybody got and from what was counted: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles

from analyzer.demo.load_generator import NOISY, ClientResponse
from analyzer.demo.processes import POLICY

RECOVERY_S = 1.0  # what was queued when the gate closed is still being worked off


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """The 95th percentile of what the others waited, in milliseconds."""

    before: float
    during: float
    after: float


@dataclass(frozen=True, slots=True)
class DemoResults:
    """The figures of one run; the last line of `--json`."""

    produced: int
    counted: int
    exact: bool  # counted and refused requests of every caller are equal to the answers they got
    locked_callers: Sequence[str]
    refused_others: int
    seconds_to_refusal: float | None
    overshoot: int
    overshoot_bound: int
    others_p95_ms: LatencyFigures
    analyzer_gap_s: float

    @property
    def held(self) -> bool:
        """Whether everything that was promised came true."""
        return (
            self.exact
            and list(self.locked_callers) == [NOISY]
            and self.refused_others == 0
            and self.seconds_to_refusal is not None
            and 0 <= self.overshoot <= self.overshoot_bound
        )

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def truth_of(answers: Iterable[ClientResponse]) -> dict[str, tuple[int, int]]:
    """For each caller: requests that were let through, and requests that were refused."""
    counts = Counter((answer.caller, answer.status == 429) for answer in answers)
    return {caller: (counts[caller, False], counts[caller, True]) for caller, _ in counts}


def findings_of(
    answers: Sequence[ClientResponse],
    counted: Mapping[str, tuple[int, int]],
    locked: Sequence[str],
    *,
    storm_s: float,
    limit: int,
    bound: int,
    gap_s: float,
) -> DemoResults:
    """The figures. `counted` holds let through and denied requests by caller; `storm_s` is when the noisy
    caller began."""
    admitted_s = sorted(a.at_s for a in answers if a.caller == NOISY and a.status == 200)
    refused_s = min((a.at_s for a in answers if a.caller == NOISY and a.policy == POLICY), default=None)
    others = [a for a in answers if a.caller != NOISY]
    reached_s = admitted_s[limit - 1] if len(admitted_s) >= limit else None
    closed_s = refused_s if refused_s is not None else float("inf")
    return DemoResults(
        produced=len(answers),
        counted=sum(value + denied for value, denied in counted.values()),
        exact=dict(counted) == truth_of(answers),
        locked_callers=sorted(locked),
        refused_others=sum(a.status != 200 for a in others),
        seconds_to_refusal=None if reached_s is None or refused_s is None else round(closed_s - reached_s, 3),
        overshoot=max(0, len(admitted_s) - limit),
        overshoot_bound=bound,
        others_p95_ms=LatencyFigures(
            before=p95_ms(a.took_s for a in others if a.at_s < storm_s),
            during=p95_ms(a.took_s for a in others if storm_s <= a.at_s < closed_s),
            after=p95_ms(a.took_s for a in others if a.at_s >= closed_s + RECOVERY_S),
        ),
        analyzer_gap_s=round(gap_s, 2),
    )


def p95_ms(waits_s: Iterable[float]) -> float:
    waits = sorted(waits_s)
    return round(quantiles(waits, n=20)[-1] * 1000, 1) if len(waits) > 1 else 0.0


def sentences(found: DemoResults, limit: int) -> list[str]:
    """Four plain sentences."""
    waits = found.others_p95_ms
    if found.exact:
        counted = f"{found.counted:,} requests were counted, for every caller as many as it sent."
    else:
        counted = (
            f"Of {found.produced:,} requests {found.counted:,} were counted: NOT equal for every caller."
        )
    killed = f"The analyzer was killed half-way and counted again {found.analyzer_gap_s:.1f} seconds later."
    if found.seconds_to_refusal is None:
        refused = (
            f"The noisy caller was NOT refused: {found.overshoot} requests beyond its limit of {limit:,}."
        )
    else:
        refused = (
            f"The noisy caller passed its limit of {limit:,} and was refused {found.seconds_to_refusal:.2f} "
            f"seconds later; {found.overshoot} requests slipped through, of at most {found.overshoot_bound}."
        )
    never = (
        f"{found.refused_others} WERE REFUSED" if found.refused_others else "none of them was ever refused"
    )
    others = (
        f"The others waited {waits.before:.0f} ms before the storm, {waits.during:.0f} ms during it and "
        f"{waits.after:.0f} ms after (95th percentile), and {never}."
    )
    return [counted, killed, refused, others]
