"""The victims of a noisy neighbour: load, errors and durations of all others, before and during."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from analyzer.counting.counter.outcomes import ERRORS, TIME, UNTIMED, middle_us
from analyzer.judging.totals import Victims
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.policies import ComparedLoad

P95 = 0.95


def without(whole: Mapping[str, int], part: Mapping[str, int]) -> dict[str, int]:
    """Returns outcomes less those of one series."""
    remaining = {outcome: value - part.get(outcome, 0) for outcome, value in whole.items()}
    return {outcome: value for outcome, value in remaining.items() if value > 0}


def explain(policy: ComparedLoad, victims: Victims) -> str:
    """Returns the part of a lock's sentence about all others.

    >>> from analyzer.plan.policies import ComparedLoad
    >>> from analyzer.judging.totals import OthersLoad, Victims
    >>> from analyzer.plan.windows import Rolling
    >>> policy = ComparedLoad("neighbour", 1, 1, Rolling(300))
    >>> during = OthersLoad(100, {"129": 80, "143": 20, "e": 20, "us": 44_000_000})
    >>> before = OthersLoad(120, {"129": 120, "us": 36_000_000})
    >>> explain(policy, Victims(during, before, has_errors=True, has_durations=True)).partition(", ")[0]
    'all others: 100 requests (120 before)'
    >>> explain(policy, Victims(during, before, has_errors=True, has_durations=True)).partition(", ")[2]
    '20 % errors (0 %), mean 440 ms (300 ms), p95 1016 ms (311 ms)'
    """
    during, earlier = victims.during, victims.before
    shown = [f"all others: {with_noun(during.load, policy.meter_unit, policy.meter)}"]
    if earlier is not None:
        shown[0] += f" ({amount_text(earlier.load, policy.meter_unit)} before)"
    for form, text in FORMS_OF_ERRORS * victims.has_errors + FORMS_OF_DURATIONS * victims.has_durations:
        now, then = text(during.outcomes), "" if earlier is None else text(earlier.outcomes)
        if now:
            shown.append(form.format(now, f" ({then})" if then else ""))
    return ", ".join(shown)


def errors_text(outcomes: Mapping[str, int]) -> str:
    """Returns the part of the requests that failed; "" without requests.

    >>> errors_text({"17": 990, "-1": 10, "e": 1, "us": 40}), errors_text({})
    ('0.1 %', '')
    """
    requests = sum(value for outcome, value in outcomes.items() if outcome not in (ERRORS, TIME))
    return f"{outcomes.get(ERRORS, 0) / requests * 100:.3g} %" if requests else ""


def mean_text(outcomes: Mapping[str, int]) -> str:
    """Returns the mean duration of requests that have one; "" without any.

    >>> mean_text({"17": 1, "18": 1, "-1": 7, "us": 40_000})
    '20 ms'
    """
    timed = sum(_classes(outcomes).values())
    return _milliseconds(outcomes.get(TIME, 0) / timed) if timed else ""


def p95_text(outcomes: Mapping[str, int]) -> str:
    """Returns the duration that 95 of 100 requests do not exceed, at most 6 % off; "" without any."""
    classes = _classes(outcomes)
    remaining = ceil(sum(classes.values()) * P95)
    for number in sorted(classes):
        remaining -= classes[number]
        if remaining <= 0:
            return _milliseconds(middle_us(number))
    return ""


def _classes(outcomes: Mapping[str, int]) -> dict[int, int]:
    """Returns the number of requests by the class of their duration."""
    by_class = {int(name): value for name, value in outcomes.items() if name not in (ERRORS, TIME)}
    by_class.pop(UNTIMED, None)
    return by_class


def _milliseconds(us: float) -> str:
    ms = us / 1000
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.2g} ms"


Form = tuple[str, Callable[[Mapping[str, int]], str]]  # "{now} errors{before}", and what stands for both
FORMS_OF_ERRORS: tuple[Form, ...] = (("{} errors{}", errors_text),)
FORMS_OF_DURATIONS: tuple[Form, ...] = (("mean {}{}", mean_text), ("p95 {}{}", p95_text))
