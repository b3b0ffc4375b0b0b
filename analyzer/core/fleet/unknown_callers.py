"""Why the log may not know the callers that a gate is asked for: both sides call somebody by another name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence, Set
from ipaddress import ip_address
from typing import NamedTuple

from analyzer.core.records.mapping import CALLER_FIELDS
from gatekeeper.identity import address_of, is_name, typed

PREFIXES6 = (48, 56, 60, 64)
BEHIND_MAX_S = 60.0


class OtherSpelling(NamedTuple):
    """Another name for the same caller, and what the two names differ in."""

    name: str
    differs: str


def spellings(caller: str, kinds: Collection[str] = CALLER_FIELDS) -> list[OtherSpelling]:
    """The names that the log may have for `caller`, counted under these kinds of name.

    >>> [other.name for other in spellings("user: acme", ["api_key", "user"])]
    ['api_key: acme', 'user: ACME', 'user:acme']
    """
    kind, colon, text = caller.partition(":")
    if not colon:
        kind, text = "", caller
    found = [
        OtherSpelling(typed(each, text), f"the kind of name: the log has {each}: in front")
        for each in kinds
        if each != kind
    ]
    same = [kind] if kind else list(kinds)
    for other, how in _texts(kind, text):
        found += [OtherSpelling(typed(each, other), how) for each in same]
    first = {other.name: other for other in reversed(found) if other.name != caller}
    return list(reversed(first.values()))


def _texts(kind: str, text: str) -> Iterator[tuple[str, str]]:
    yield text.strip(), "blanks around it"
    yield text.lower(), "capital letters"
    yield text.upper(), "capital letters"
    yield _decoded(text), "how it is written: the gate has it percent-encoded"
    first, _, rest = text.partition(" ")
    if rest:
        yield rest.strip(), f"the word {first!r} in front of it"
    if kind in ("", "address"):
        yield from _addresses(text)
        yield from _addresses(text.rpartition(":")[0].strip("[]"))  # without its port


def _addresses(text: str) -> Iterator[tuple[str, str]]:
    plain = address_of(text)
    if plain is None:
        return
    yield plain, "how the address is written"
    for bits in PREFIXES6:
        cut = address_of(text, bits) or plain
        yield cut, f"the prefix: the log cuts IPv6 addresses to {bits} bits"


def _decoded(text: str) -> str:
    """What `text` stands for, where it is percent-encoded."""
    whole = re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode(errors="replace")
    )
    return whole.decode(errors="replace")


class LogKnowledge(NamedTuple):
    """What is known of the log, to find out why it does not know somebody."""

    known: Set[str]  # callers, and other spellings of theirs
    kinds: Collection[str]  # of names, as the sources' `caller` says; none where that is not known
    behind_s: float = 0.0
    overflow: bool = False  # it had too many callers to count all of them by name


class Explanation(NamedTuple):
    """Why the log is likely not to know somebody, and what to do."""

    why: str
    cure: str


def cause(strangers: Sequence[str], seen: LogKnowledge) -> Explanation:
    """Why it is likely that the log does not know these callers, of whom there is at least one."""
    explained = (
        explain(caller, seen) for explain in (_other_name, _no_kind, _no_name) for caller in strangers
    )
    first = next((each for each in explained if each is not None), None)
    return first or _of_all(strangers, seen)


def _other_name(caller: str, seen: LogKnowledge) -> Explanation | None:
    for other in spellings(caller, seen.kinds or CALLER_FIELDS):
        if other.name in seen.known:
            return Explanation(
                f"the log knows {other.name}, the gate is asked for {caller}: they differ in {other.differs}",
                "have the gate ask for the name that the source's `caller` makes (`caller_of` does)",
            )
    return None


def _no_kind(caller: str, _seen: LogKnowledge) -> Explanation | None:
    if ":" in caller:
        return None
    return Explanation(
        f"{caller} has no kind of name in front", "ask for api_key:..., user:... or address:..."
    )


def _no_name(caller: str, seen: LogKnowledge) -> Explanation | None:
    kind, _, text = caller.partition(":")
    if not is_name(text):
        return Explanation(f"{caller} can be no name in the log", "ask for names that `caller_of` makes")
    if seen.kinds and kind not in seen.kinds:
        counted = " or ".join(seen.kinds)
        return Explanation(
            f"no source counts by {kind}: their `caller` is {counted}",
            f"ask for these, or add {kind} to the source's `caller`",
        )
    return None


def _of_all(strangers: Sequence[str], seen: LogKnowledge) -> Explanation:
    if seen.overflow:
        return Explanation(
            "the log has too many callers to count each by name", "raise the source's callers_per_hour"
        )
    if seen.behind_s > BEHIND_MAX_S:
        return Explanation(
            f"the log is counted {seen.behind_s:.0f} s late", "look again when the analyzers have caught up"
        )
    if all(map(_is_inside, strangers)):
        return Explanation(
            "they are addresses inside a network: of a proxy, perhaps", "set the adapter's trusted_proxies"
        )
    return Explanation(
        "they may be new, made up by somebody, or of requests that the log does not hold",
        "compare these names with those in the log (`gatelock usage`)",
    )


def _is_inside(caller: str) -> bool:
    kind, _, text = caller.partition(":")
    try:
        return kind == "address" and ip_address(text).is_private
    except ValueError:
        return False
