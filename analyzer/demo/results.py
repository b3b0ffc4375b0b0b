"""Results of the demo, computed from the responses and the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import quantiles

from analyzer.demo.load_generator import NOISY, ClientResponse
from analyzer.demo.processes import POLICY
from analyzer.demo.traffic_size import TrafficSize

RECOVERY_S = 1.0  # after the gate has closed, requests that were queued before are still served


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """95th percentile of the other callers' waits, in milliseconds, before, during and after the flood."""

    before: float
    during: float
    after: float


@dataclass(frozen=True, slots=True)
class DemoResults:
    """Figures of one run; the field names are those of `--json`."""

    produced: int
    counted: int
    exact: bool  # whether each caller's counts, and what is denied, equal the responses that it got
    late: bool  # whether counts are only behind: none is too large, and the analyzer has records to read
    speed: float  # of this machine, 1 at most
    limit: int
    locked_callers: Sequence[str]
    refused_others: int
    # From the limit to the first refusal by the lock; None if there was none.
    seconds_to_refusal: float | None
    overshoot: int
    overshoot_bound: int  # that of the limiters, within the delay that was assumed, or the longer one seen
    assumed_delay_s: float  # of the lock, before the flood
    delay_s: float  # from the limit to the last request that a gate admitted
    others_p95_ms: LatencyFigures
    analyzer_gap_s: float  # from the kill to the next counted request

    @property
    def is_successful(self) -> bool:
        """Whether every promise held."""
        return (
            self.exact
            and list(self.locked_callers) == [NOISY]
            and self.refused_others == 0
            and self.seconds_to_refusal is not None
            and 0 <= self.overshoot <= self.overshoot_bound
        )

    def with_counts(
        self, sent: Counter[tuple[str, bool]], counted: Mapping[str, tuple[int, int]], lag: int | None
    ) -> DemoResults:
        """Returns these results with the counts of a longer time."""
        expected = expected_counts(sent)
        return replace(
            self,
            produced=sent.total(),
            counted=sum(map(sum, counted.values())),
            exact=dict(counted) == expected,
            late=is_behind(counted, expected, lag),
        )

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def expected_counts(sent: Counter[tuple[str, bool]]) -> dict[str, tuple[int, int]]:
    """Returns for each caller its requests that count, and that a lock denied.

    `sent` are the requests by caller, and whether a lock denied them. Those that the limiter refused count.
    """
    return {caller: (sent[caller, False], sent[caller, True]) for caller, _ in sent}


def measure_run(
    responses: Sequence[ClientResponse],
    counted: Mapping[str, tuple[int, int]],
    locked: Sequence[str],
    *,
    flood_began_s: float,
    size: TrafficSize,
    gap_s: float,
    lag: int | None = None,
) -> DemoResults:
    """Returns the figures of a run.

    `counted` has admitted and denied requests for each caller; `lag` is the number of records that the
    analyzer has not read yet.
    """
    limit = size.limit
    sent = Counter((response.caller, bool(response.policy)) for response in responses)
    expected = expected_counts(sent)
    noisy = [response for response in responses if response.caller == NOISY]
    quiet = [response for response in responses if response.caller != NOISY]
    counted_s = sorted(response.at_s for response in noisy if not response.policy)
    refused_s = min((response.at_s for response in noisy if response.policy == POLICY), default=None)
    reached_s = counted_s[limit - 1] if len(counted_s) >= limit else None
    admitted_s = [response.at_s for response in noisy if response.status == 200]
    beyond_s = [] if reached_s is None else [at_s - reached_s for at_s in admitted_s if at_s > reached_s]
    delay_s = max(beyond_s, default=0.0)
    closed_s = refused_s if refused_s is not None else float("inf")
    return DemoResults(
        produced=len(responses),
        counted=sum(admitted + denied for admitted, denied in counted.values()),
        exact=dict(counted) == expected,
        late=is_behind(counted, expected, lag),
        speed=size.speed,
        limit=limit,
        locked_callers=sorted(locked),
        refused_others=sum(response.status != 200 for response in quiet),
        seconds_to_refusal=None if reached_s is None or refused_s is None else round(closed_s - reached_s, 3),
        overshoot=len(beyond_s),
        overshoot_bound=size.overshoot_bound(max(size.delay_s, delay_s)),
        assumed_delay_s=round(size.delay_s, 1),
        delay_s=round(delay_s, 3),
        others_p95_ms=LatencyFigures(
            before=p95_ms(r.took_s for r in quiet if r.at_s < flood_began_s),
            during=p95_ms(r.took_s for r in quiet if flood_began_s <= r.at_s < closed_s),
            after=p95_ms(r.took_s for r in quiet if r.at_s >= closed_s + RECOVERY_S),
        ),
        analyzer_gap_s=round(gap_s, 2),
    )


def is_behind(
    counted: Mapping[str, tuple[int, int]], expected: Mapping[str, tuple[int, int]], lag: int | None
) -> bool:
    """Whether counts that differ can still become right: records are left to read, and none is too large.

    An analyzer that does not answer (`lag` is None) may have records to read.
    """
    sent = {caller: sum(amounts) for caller, amounts in expected.items()}
    too_large = any(sum(amounts) > sent.get(caller, 0) for caller, amounts in counted.items())
    return not too_large and lag != 0 and dict(counted) != dict(expected)


def p95_ms(waits_s: Iterable[float]) -> float:
    """Returns the 95th percentile in milliseconds; 0.0 for fewer than two waits."""
    waits = sorted(waits_s)
    return round(quantiles(waits, n=20)[-1] * 1000, 1) if len(waits) > 1 else 0.0


def summary(results: DemoResults) -> list[str]:
    """Returns four sentences: counts, the kill, the refusal, the other callers."""
    if results.exact:
        counted = (
            f"All {results.counted:,} requests were counted, for each caller exactly as many as it sent."
        )
    elif results.late:
        counted = (
            f"Of {results.produced:,} requests {results.counted:,} were counted so far; the others were NOT "
            "COUNTED YET: the analyzer still has records to read, and counted none for a while."
        )
    else:
        counted = (
            f"Of {results.produced:,} requests {results.counted:,} were counted: "
            "the counts are WRONG for at least one caller."
        )
    killed = (
        f"The analyzer was killed in between and counted again {results.analyzer_gap_s:.1f} seconds later."
    )
    beyond = f"{results.overshoot} request{'' if results.overshoot == 1 else 's'}"
    slower = ""
    if results.delay_s > results.assumed_delay_s:
        slower = (
            f" in the {results.delay_s:.1f} seconds until the last gate was closed (more than the "
            f"{results.assumed_delay_s:.1f} that were assumed: this machine is busy)"
        )
    if results.seconds_to_refusal is None:
        refused = f"The noisy caller was NOT refused: it sent {beyond} beyond its limit of {results.limit:,}."
    else:
        refused = (
            f"The noisy caller was refused {results.seconds_to_refusal:.2f} seconds after it had reached its "
            f"limit of {results.limit:,}; gates admitted {beyond} beyond it, of at most "
            f"{results.overshoot_bound:,}{slower}."
        )
    waits = results.others_p95_ms
    never = f"{results.refused_others} of their requests WERE REFUSED"
    waited = (
        f"The other callers waited {waits.before:.0f} ms before the flood, {waits.during:.0f} ms during it "
        f"and {waits.after:.0f} ms after it (95th percentile), and "
        f"{never if results.refused_others else 'none of them was ever refused'}."
    )
    return [counted, killed, refused, waited]
