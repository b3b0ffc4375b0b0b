"""Meters that policies with `where` make: their names, and conditions as text.

Such a policy limits a meter that no configuration states: what its `meter` counts, of the requests for which
its conditions hold, too. The name says both: `requests where method=POST and resource=/v1/*`. Policies with
equal meters and conditions share one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

import msgspec

from analyzer.plan.mapping import Condition, Pattern, in_order
from analyzer.plan.meters import BUILT_IN, Meter

WHERE = " where "
NAME_CHARACTERS_MAX = 160  # of a derived meter; then its name ends with a digest
DIGEST_CHARACTERS = 12
PLAIN = re.compile(r"[A-Za-z0-9._/{}-]+")  # values that need no quotation marks
LITERAL = re.compile(r"[ -&(-~]*")  # printable ASCII without '
PLAIN_GLOB = re.compile(r"(?=.*\*)[A-Za-z0-9._/{}*-]+")


def is_derived(name: str) -> bool:
    """Whether a meter was made for policies with `where`. No name in a configuration has a blank."""
    return WHERE in name


def is_stated(name: str) -> bool:
    """Whether a meter is `requests` or one that a configuration states: reports list no others unasked."""
    return not is_derived(name) and all(name != built_in.name for built_in in BUILT_IN)


def derived_name(meter: str, where: Iterable[Condition]) -> str:
    """Returns the name of what `meter` counts under conditions; equal for equal conditions in any order.

    At most NAME_CHARACTERS_MAX characters, all ASCII; conditions that do not fit are cut, and told apart by a
    digest of all of them.

    >>> where = [Condition("resource", (Pattern("glob", "/v1/*"),)), Condition("method", ("POST",))]
    >>> derived_name("requests", where)
    'requests where method=POST and resource=/v1/*'
    """
    text = meter + WHERE + " and ".join(map(condition_text, in_order(where)))
    if len(text) <= NAME_CHARACTERS_MAX:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]
    return f"{text[: NAME_CHARACTERS_MAX - DIGEST_CHARACTERS - 4]}... {digest}"


def derived_meter(meter: Meter, where: Iterable[Condition]) -> Meter:
    """Returns what `meter` counts, of the requests for which these conditions hold."""
    where = tuple(where)
    name = derived_name(meter.name, where)
    return msgspec.structs.replace(meter, name=name, where=(*meter.where, *where), renamed_from="")


def condition_text(condition: Condition) -> str:
    """Returns a condition in short form; different for conditions of different meaning.

    >>> condition_text(Condition("status", ("401", "500-599")))
    'status=401|500-599'
    """
    values = "|".join(value_text(value) for value in condition.values)
    return f"{condition.field}{'!=' if condition.is_not else '='}{values}"


def value_text(value: str | Pattern) -> str:
    r"""Returns a value or a pattern of a condition, in quotation marks where it has unusual characters.

    >>> print(value_text("POST"), value_text("a b"), value_text(Pattern("match", r"^/\w")), sep=", ")
    POST, 'a b', match '^/\w'
    """
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else _quoted(value)
    if value.kind == "glob" and PLAIN_GLOB.fullmatch(value.text):
        return value.text
    return f"{value.kind} {_quoted(value.text)}"


def _quoted(text: str) -> str:
    """Returns a text as TOML may have it, in ASCII: without escapes where that is possible."""
    return f"'{text}'" if LITERAL.fullmatch(text) else json.dumps(text)
