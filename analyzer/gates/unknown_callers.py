"""Likely causes for which the log does not have the callers that a gate is asked for.

Gate and log name callers independently. If the two names of one caller differ, its requests are counted under
one and checked under the other, and no lock ever applies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence, Set
from ipaddress import ip_address
from typing import NamedTuple

from analyzer.plan.mapping import CALLER_FIELDS
from gatekeeper.identity import address_of, is_name, typed

IPV6_PREFIXES = (48, 56, 60, 64)
BEHIND_MAX_S = 60.0


class Spelling(NamedTuple):
    """Another name for the same caller.

    Attributes:
        name: The name.
        difference: What the two names differ in.
    """

    name: str
    difference: str


class LogKnowledge(NamedTuple):
    """Facts about the log by which a cause is found.

    Attributes:
        known: Callers that the log has, among those asked for and their other spellings.
        kinds: Kinds of name that the sources count by, from their `caller`; empty if unknown.
        behind_s: Lag of counting, in seconds.
        overflow: Whether there were too many callers to count each of them by name.
    """

    known: Set[str]
    kinds: Collection[str]
    behind_s: float = 0.0
    overflow: bool = False


class UnknownCause(NamedTuple):
    """Likely cause for which the log does not have a caller.

    Attributes:
        why: The cause.
        cure: What to do, in the imperative.
    """

    why: str
    cure: str


def spellings(caller: str, kinds: Collection[str] = CALLER_FIELDS) -> list[Spelling]:
    """Returns the other names that the log may have for `caller`, if it counts by these kinds of name.

    >>> [spelling.name for spelling in spellings("user: acme", ["api_key", "user"])]
    ['api_key: acme', 'user: ACME', 'user:acme']
    """
    kind, colon, text = caller.partition(":")
    if not colon:
        kind, text = "", caller
    candidates = [
        Spelling(typed(other_kind, text), f"the kind of name: the log has {other_kind}: in front")
        for other_kind in kinds
        if other_kind != kind
    ]
    same_kinds = [kind] if kind else list(kinds)
    for other_text, difference in _texts(kind, text):
        candidates += [Spelling(typed(same_kind, other_text), difference) for same_kind in same_kinds]
    first = {spelling.name: spelling for spelling in reversed(candidates) if spelling.name != caller}
    return list(reversed(first.values()))


def cause(callers: Sequence[str], log: LogKnowledge) -> UnknownCause:
    """Returns the likely cause for which the log does not have any of these callers, of which one at least
    must be given."""
    by_caller = (
        find(caller, log) for find in (_other_spelling, _missing_kind, _unusable) for caller in callers
    )
    first = next((likely for likely in by_caller if likely is not None), None)
    return first or _common_cause(callers, log)


def _other_spelling(caller: str, log: LogKnowledge) -> UnknownCause | None:
    for spelling in spellings(caller, log.kinds or CALLER_FIELDS):
        if spelling.name in log.known:
            return UnknownCause(
                f"the log knows {spelling.name}, the gate is asked for {caller}: they differ in "
                f"{spelling.difference}",
                "have the gate ask for the name that the source's `caller` makes (`caller_of` does)",
            )
    return None


def _missing_kind(caller: str, _log: LogKnowledge) -> UnknownCause | None:
    if ":" in caller:
        return None
    return UnknownCause(
        f"{caller} has no kind of name in front", "ask for api_key:..., user:... or address:..."
    )


def _unusable(caller: str, log: LogKnowledge) -> UnknownCause | None:
    kind, _, text = caller.partition(":")
    if not is_name(text):
        return UnknownCause(
            f"{caller} cannot be a name in the log: it is too long, or has control characters",
            "ask for names that `caller_of` makes",
        )
    if log.kinds and kind not in log.kinds:
        counted = " or ".join(log.kinds)
        return UnknownCause(
            f"no source counts by {kind}: their `caller` is {counted}",
            f"ask for these, or add {kind} to the source's `caller`",
        )
    return None


def _common_cause(callers: Sequence[str], log: LogKnowledge) -> UnknownCause:
    """Returns a cause that is not seen in a single name."""
    if log.overflow:
        return UnknownCause(
            "the log has too many callers to count each by name", "raise the source's callers_per_hour"
        )
    if log.behind_s > BEHIND_MAX_S:
        return UnknownCause(
            f"counting is {log.behind_s:.0f} s behind", "repeat this when the analyzers have caught up"
        )
    if all(map(_is_private_address, callers)):
        return UnknownCause(
            "they are addresses inside a network: of a proxy, perhaps", "set the adapter's trusted_proxies"
        )
    return UnknownCause(
        "they may be new, invented by a client, or of requests that the log does not have",
        "compare these names with those in the log (`gatelock usage`)",
    )


def _texts(kind: str, text: str) -> Iterator[tuple[str, str]]:
    """Yields other spellings of a name behind its kind, each with the difference."""
    yield text.strip(), "blanks around it"
    yield text.lower(), "capital letters"
    yield text.upper(), "capital letters"
    yield _percent_decoded(text), "how it is written: the gate has it percent-encoded"
    first_word, _, remainder = text.partition(" ")
    if remainder:
        yield remainder.strip(), f"the word {first_word!r} in front of it"
    if kind in ("", "address"):
        yield from _addresses(text)
        yield from _addresses(text.rpartition(":")[0].strip("[]"))  # without its port


def _addresses(text: str) -> Iterator[tuple[str, str]]:
    address = address_of(text)
    if address is None:
        return
    yield address, "how the address is written"
    for bits in IPV6_PREFIXES:
        network = address_of(text, bits) or address
        yield network, f"the prefix: the log cuts IPv6 addresses to {bits} bits"


def _percent_decoded(text: str) -> str:
    decoded = re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda escape: bytes.fromhex(escape[1].decode()), text.encode(errors="replace")
    )
    return decoded.decode(errors="replace")


def _is_private_address(caller: str) -> bool:
    kind, _, text = caller.partition(":")
    try:
        return kind == "address" and ip_address(text).is_private
    except ValueError:
        return False
