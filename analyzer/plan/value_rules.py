"""Rules for single values: caller names, texts, networks, conditions, times. None: the value is unusable."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from hashlib import blake2b, sha256
from ipaddress import ip_address, ip_network
from typing import Any

from analyzer.plan.format_decoder import RawValue
from analyzer.plan.mapping import (
    HOST,
    TENANT_FACTS,
    AddressField,
    Condition,
    Field,
    NumberField,
    ResourceField,
    TextField,
)
from analyzer.plan.patterns import compile_patterns
from analyzer.plan.route_matcher import RouteMatcher
from gatekeeper.identity import MISSING, NameDigest, TrustedProxies, client_address, is_name, typed

Digests = Mapping[str, NameDigest]  # by fingerprint
NO_DIGESTS: Digests = {}
ValueRule = Callable[[Any], Any]

# Answer of a caller's rule, or a fact's, for text that cannot be one. False, as "" for a missing name, so
# that `all` finds the columns in which each record has a name.
UNUSABLE = False

# A time zone's name by its form; which zones there are, the machine that judges knows.
ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}")

# A machine's name: not a number, a list, a time or an address with a port. Syslog writes `Nov` in front.
HOST_NAME = re.compile(r"(?=.{1,253}\Z)(?=[^A-Za-z]*+[A-Za-z])(?:[A-Za-z0-9_-]{1,63}(?:\.|\Z))+")
PART_OF_TIME = re.compile(
    r"Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mon|Tue|Wed|Thu|Fri|Sat|Sun"
    r"|[0-9]{4}-?[0-9]{2}-?[0-9]{2}[Tt][0-9].*"
)

END_OF_PATH = re.compile("[?#]")

NO_VALUE = ""  # in place of the digest of a value that a record does not have
VALUE_BYTES = 8  # of the digest of a value

MEMO_BYTES_MAX = 8 << 20  # per rule; then its memo is emptied
# Of a rule for callers: some 180,000 names. Reading an address again takes 15 times as long as looking it up.
CALLERS_BYTES_MAX = 40 << 20
MEMO_ENTRY_BYTES = 100  # of an entry in a dict that has room for more
MEMO_VALUE_BYTES_MAX = 400  # a log may be full of larger values that never repeat
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
RANGE_DIGITS_MAX = 19

# Types whose values are equal only to values of that type; as a dict key, True would equal 1.
MEMO_TYPES: frozenset[type] = frozenset({str, int, type(None)})


class MemoizedRule(dict[Any, Any]):
    """A rule with a bounded memo of its answers."""

    def __init__(
        self, rule: ValueRule, types: frozenset[type] = MEMO_TYPES, bytes_max: int = MEMO_BYTES_MAX
    ) -> None:
        """Only values of `types` are memoized, in about `bytes_max` bytes."""
        super().__init__()
        self.rule = rule
        self._bytes_max = bytes_max
        self._types = types
        self._bytes = 0

    def __missing__(self, raw: RawValue) -> Any:
        answer = self.rule(raw)
        raw_bytes = sys.getsizeof(raw)
        if raw_bytes <= MEMO_VALUE_BYTES_MAX:
            entry_bytes = raw_bytes + sys.getsizeof(answer) + MEMO_ENTRY_BYTES
            self._bytes += entry_bytes
            if self._bytes > self._bytes_max:
                self.clear()
                self._bytes = entry_bytes
            self[raw] = answer
        return answer

    def read(self, column: Sequence[RawValue]) -> list[Any]:
        if self._types.issuperset(map(type, column)):
            return list(map(self.__getitem__, column))
        return [self.rule(raw) for raw in column]


class RouteRule:
    """The rule of a resource. Without a memo: most paths never repeat."""

    def __init__(self, field: ResourceField) -> None:
        self._routes = RouteMatcher(field.routes, field.other)

    def rule(self, raw: RawValue) -> str | None:
        if raw is None:
            return ""
        return self.read([raw])[0] if type(raw) is str else None

    def read(self, column: Sequence[RawValue]) -> list[Any]:
        if {str}.issuperset(map(type, column)):
            return self._routes.match_all(column)  # type: ignore[arg-type]  # all of them are text
        return [self.rule(raw) for raw in column]


class RouteConditionRule:
    """The rule of a condition on routes: it is asked once for each route, not for each path."""

    def __init__(self, routes: RouteRule, condition: MemoizedRule) -> None:
        self._routes, self._condition = routes, condition

    def rule(self, raw: RawValue) -> bool | None:
        return self.read([raw])[0]  # type: ignore[no-any-return]  # as the condition answers

    def read(self, column: Sequence[RawValue]) -> list[Any]:
        return self._condition.read(self._routes.read(column))


def path_rule(bytes_max: int) -> ValueRule:
    """Returns the rule of a resource without routes: the path as it stands, without query and fragment.

    "" where it is missing or cannot be a name; None for a value that is not text.
    """

    def resource(raw: RawValue) -> str | None:
        if type(raw) is not str:
            return "" if raw is None else None
        path = END_OF_PATH.split(raw, 1)[0]
        return path if is_name(path, bytes_max) else ""

    return resource


class SecretMissing(ValueError):
    """A field is counted by a digest whose secret this process does not have."""


def field_digest(field: Field, digests: Digests) -> NameDigest | None:
    """Returns the digest that a field is counted by, None for most. Raises SecretMissing."""
    fingerprint = field.digest if isinstance(field, TextField) else ""
    if fingerprint and fingerprint not in digests:
        raise SecretMissing(
            f"{'.'.join(field.path)} is counted by a digest with another secret (fingerprint {fingerprint})"
        )
    return digests[fingerprint] if fingerprint else None


def address_rule(field: AddressField) -> Callable[[str], str | None]:
    """Returns the rule of a client's address in a text, which may be a list; None for a text without one."""
    prefix6, trusted = field.prefix6, TrustedProxies(field.trusted_proxies or ())
    return lambda text: client_address(text, prefix6, trusted)


def host_name(text: str) -> str | None:
    """Returns a text that can be the host name of a client, "" for an address, None for any other text.

    >>> [host_name(text) for text in ("web1.example", "192.0.2.1", "Nov", "a,b", "2026-11-24T08:00:00Z")]
    ['web1.example', '', None, None, None]
    """
    if client_address(text) is not None:
        return ""
    return text if HOST_NAME.fullmatch(text) and not PART_OF_TIME.fullmatch(text) else None


def caller_rule(kind: str, field: Field, bytes_max: int, digests: Digests = NO_DIGESTS) -> MemoizedRule:
    """Returns the rule of a caller's typed name.

    "" where the field is missing; UNUSABLE for text that cannot be a name; None for a value that is not text.
    A number is not a name, so that 1 and "1" never collide. An address in the field `host` is left to that of
    the address, which gates ask for. Raises ValueError for a field that cannot hold a name; SecretMissing.
    """
    if isinstance(field, ResourceField | NumberField):
        raise ValueError(f"{kind}: a {type(field).__name__} cannot name a caller")  # noqa: TRY004 - a wrong mapping
    read = address_rule(field) if isinstance(field, AddressField) else host_name if kind == HOST else None
    digest = field_digest(field, digests)

    def name(raw: RawValue) -> str | bool | None:
        if type(raw) is not str:
            return "" if raw is None else None
        if raw in MISSING:
            return ""
        text = raw if read is None else read(raw)
        if text == "":
            return ""
        if text is None or not is_name(text, bytes_max):
            return UNUSABLE
        return typed(kind, text if digest is None else digest.of(text))

    return MemoizedRule(name, bytes_max=CALLERS_BYTES_MAX)


def text_rule(field: Field, bytes_max: int, digests: Digests = NO_DIGESTS) -> MemoizedRule | RouteRule:
    """Returns the rule of a text that requests are counted by.

    "" where the field is missing, or has a text that cannot be a name or an address: what a client says
    never rejects a record. None for a value that is not text.
    """
    if isinstance(field, ResourceField):
        return RouteRule(field) if field.routes else MemoizedRule(path_rule(bytes_max))
    read = address_rule(field) if isinstance(field, AddressField) else None
    digest = field_digest(field, digests)

    def text(raw: RawValue) -> str | None:
        plain = as_text(raw)
        if plain == "" or plain is None:
            return plain
        if read is not None:
            return read(plain) or ""
        if not is_name(plain, bytes_max):
            return ""
        return plain if digest is None else digest.of(plain)

    return MemoizedRule(text)


def fact_rule(name: str, field: Field, bytes_max: int, digests: Digests = NO_DIGESTS) -> MemoizedRule:
    """Returns the rule of the fact `name` about a caller or a tenant.

    "" where the field is missing; UNUSABLE for what cannot be a name, a time zone's name or a day. Raises
    ValueError for a field that is not text; SecretMissing.

    >>> rule = fact_rule("anchor", TextField(("since",)), 256).rule
    >>> rule("2026-01-31"), rule(None), rule("-"), rule("yesterday")
    ('2026-01-31', '', '', False)
    """
    if not isinstance(field, TextField):
        raise ValueError(f"{name}: a {type(field).__name__} states no fact")  # noqa: TRY004 - a wrong mapping
    digest = field_digest(field, digests)
    is_anchor_text, is_zone_text = (TENANT_FACTS.get(name, name) == fact for fact in ("anchor", "zone"))

    def fact(raw: RawValue) -> str | bool:
        plain = as_text(raw)
        if plain is None or plain in MISSING:
            return UNUSABLE if plain is None else ""
        if not is_name(plain, bytes_max):
            return UNUSABLE
        if (is_anchor_text and not is_anchor(plain)) or (is_zone_text and not ZONE.fullmatch(plain)):
            return UNUSABLE
        return plain if digest is None else digest.of(plain)

    return MemoizedRule(fact)


def is_anchor(text: str) -> bool:
    """Whether a text is a day, as an anchor is stated: 2026-01-31."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def network_rule(field: Field, version: int, prefix: int) -> MemoizedRule:
    """Returns the rule of the network that an address belongs to, written 203.0.113.0/24.

    "" where the address is missing, is none, or of the other family. An IPv6 address that the field has cut
    to fewer than `prefix` bits stays as it was cut. Raises ValueError for a field that holds no addresses.

    >>> rule = network_rule(AddressField(("ip",)), 4, 24).rule
    >>> rule("203.0.113.7"), rule("2001:db8::1"), rule(None), rule("nonsense")
    ('203.0.113.0/24', '', '', '')
    """
    if not isinstance(field, AddressField):
        raise ValueError(f"a {type(field).__name__} has no network")  # noqa: TRY004 - a wrong mapping
    address = text_rule(field, 0).rule

    def network(raw: RawValue) -> str | None:
        text = address(raw)
        if not text:
            return text
        host, _, cut_to = text.partition("/")
        parsed = ip_address(host)
        if parsed.version != version:
            return ""
        return str(ip_network((parsed, min(prefix, int(cut_to or prefix))), strict=False))

    return MemoizedRule(network)


def condition_rule(field: Field, condition: Condition, bytes_max: int) -> MemoizedRule | RouteConditionRule:
    """Returns the rule of a condition: whether the field's text is one of its values, or none of them.

    A text that continues with parameters (RFC 9651, as in the header of a refusal: denied;policy="daily") is
    the value before them, too; a whole number is one of a range ("500-599"); and a text matches a pattern as
    it is, a glob without its query. `bytes_max` is the longest path that is a resource without routes.
    """
    is_not = condition.is_not
    texts = frozenset(condition.texts)
    parted = (text.partition("-") for text in condition.texts)
    ranges = [
        range(int(low), int(high) + 1) for low, _, high in parted if _is_digits(low) and _is_digits(high)
    ]
    matches = compile_patterns(condition.patterns) if condition.patterns else None
    # Addresses and resources are compared as they are counted by; any other text as it is, however long.
    as_counted = isinstance(field, AddressField | ResourceField)
    text: ValueRule = as_text
    routes = RouteRule(field) if isinstance(field, ResourceField) and field.routes else None
    if as_counted:
        text = _unchanged if routes is not None else text_rule(field, bytes_max).rule

    def holds(raw: RawValue) -> bool | None:
        plain = text(raw)
        if plain is None:
            return None
        if texts and (plain in texts or (not as_counted and plain.partition(";")[0] in texts)):
            return not is_not
        if ranges and _is_digits(plain) and any(int(plain) in numbers for numbers in ranges):
            return not is_not
        if matches is not None and matches(plain):
            return not is_not
        return is_not

    return MemoizedRule(holds) if routes is None else RouteConditionRule(routes, MemoizedRule(holds))


def distinct_rule(field: Field, digests: Digests = NO_DIGESTS) -> MemoizedRule:
    """Returns the rule of a value that is counted once: the signed 64-bit digest of its text.

    The text is that of a condition, of any length and with any characters: what cannot be a name is a value
    too. An address has its canonical text; a resource is given as its route. NO_VALUE for a missing text.
    Raises SecretMissing.

    >>> rule = distinct_rule(TextField(("user",))).rule
    >>> rule("ann"), rule(7) == rule("7"), rule(None)
    (-8270052116146162779, True, '')
    """
    text: ValueRule = as_text
    if isinstance(field, AddressField):
        text = text_rule(field, 0).rule
    elif isinstance(field, ResourceField):
        text = _unchanged
    secret = field_digest(field, digests)
    # A field whose text must not be stored: without the secret, trying texts does not show a value's.
    key = b"" if secret is None else sha256(_secret_bytes(secret)).digest()

    def digest(raw: RawValue) -> int | str | None:
        plain = text(raw)
        if not plain:
            return NO_VALUE if plain == "" else None
        hashed = blake2b(plain.encode(errors="surrogatepass"), digest_size=VALUE_BYTES, key=key)
        return int.from_bytes(hashed.digest(), signed=True)

    return MemoizedRule(digest)


def time_rule(parse: Callable[[str], int | None]) -> ValueRule:
    """Returns the rule of a time written as text, in milliseconds."""
    return lambda raw: parse(raw) if type(raw) is str else None


def as_text(raw: RawValue) -> str | None:
    """Returns strings, 64-bit whole numbers and booleans as text, "" for a missing value, else None."""
    if raw is None:
        return ""
    if type(raw) is str:
        return raw
    if type(raw) is bool:
        return "true" if raw else "false"
    return str(raw) if type(raw) is int and INT64_MIN <= raw <= INT64_MAX else None


def as_event_id(raw: RawValue) -> str:
    """Returns an event's id: a string, or a 64-bit whole number as text; "" for anything else."""
    if type(raw) is bool:
        return ""
    text = as_text(raw)
    return "" if text is None or text in MISSING else text


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= RANGE_DIGITS_MAX


def _secret_bytes(digest: NameDigest) -> bytes:
    return digest.secret.encode() if isinstance(digest.secret, str) else digest.secret


def _unchanged(text: Any) -> Any:
    return text
