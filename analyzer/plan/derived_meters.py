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
from analyzer.plan.meters import Meter

WHERE = " where "
NAME_CHARACTERS_MAX = 160  # of a derived meter; then its name ends with a digest
DIGEST_CHARACTERS = 12
PLAIN = re.compile(r"[A-Za-z0-9._/{}-]+")  # values that need no quotation marks
PLAIN_GLOB = re.compile(r"(?=.*\*)[A-Za-z0-9._/{}*-]+")


def is_derived(name: str) -> bool:
    """Whether a meter was made for policies with `where`. No name in a configuration has a blank."""
    return WHERE in name


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
    """Returns a value or a pattern of a condition, in quotation marks where it has unusual characters.

    >>> print(*map(value_text, ("POST", "a b", Pattern("glob", "*.php"), Pattern("match", "^/a"))), sep=", ")
    POST, "a b", *.php, match "^/a"
    """
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value)
    if value.kind == "glob" and PLAIN_GLOB.fullmatch(value.text):
        return value.text
    return f"{value.kind} {json.dumps(value.text)}"
