"""The policies by which gates denied requests, as records name them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from analyzer.counting.records.columns import ColumnIndex
from analyzer.counting.records.formats import make_decoder
from analyzer.plan.format_decoder import RawValue
from analyzer.plan.mapping import SourceMapping, TextField
from analyzer.plan.value_rules import MemoizedRule
from gatekeeper.identity import is_name

POLICY = "policy"  # the field

HEADER = re.compile(r'[^";]*;policy="((?:[^"\\]|\\.)*)"')  # denied;policy="daily" (RFC 9651)
ESCAPED = re.compile(r"\\(.)")


class PolicyNames:
    """Reads the names of policies from records of denied requests.

    From the field `policy`, if the source maps it as text, otherwise from the fields of `deny_if`, which may
    have the complete header of a denial. Only denied requests have a policy, so their records are read a
    second time: the others cost nothing.
    """

    def __init__(self, mapping: SourceMapping) -> None:
        index = ColumnIndex()
        names = [POLICY] if POLICY in mapping.fields else [condition.field for condition in mapping.deny_if]
        fields = [field for name in names if isinstance(field := mapping.fields.get(name), TextField)]
        rule = policy_in_field if POLICY in mapping.fields else policy_in_header
        self._rules = [
            (index.of(field.path), MemoizedRule(lambda raw: rule(raw, mapping.name_bytes_max)))
            for field in fields
        ]
        self._format = make_decoder(mapping, index.paths) if fields else None

    def read(self, values: Sequence[bytes]) -> list[str]:
        """Returns the policy that each record names; "" where it names none. `values` is not empty."""
        policies = [""] * len(values)
        if self._format is not None:
            columns, _ = self._format.read(values)
            for column, rule in self._rules:
                policies = [a or b for a, b in zip(policies, rule.read(columns[column]), strict=True)]
        return policies


def policy_in_field(raw: RawValue, bytes_max: int) -> str:
    """Returns the policy that a field has, by its name or in a header; "" for what cannot be a name.

    >>> policy_in_field("daily", 100), policy_in_field('denied;policy="daily"', 100), policy_in_field(7, 100)
    ('daily', 'daily', '')
    """
    is_header = isinstance(raw, str) and HEADER.match(raw) is not None
    return policy_in_header(raw, bytes_max) if is_header else _name(raw, bytes_max)


def policy_in_header(raw: RawValue, bytes_max: int) -> str:
    """Returns the policy in the value of a header `Gatelock`; "" where it names none.

    >>> policy_in_header('denied;policy="daily"', 100), policy_in_header("denied", 100)
    ('daily', '')
    """
    header = HEADER.match(raw) if isinstance(raw, str) else None
    return "" if header is None else _name(ESCAPED.sub(r"\1", header[1]), bytes_max)


def _name(raw: RawValue, bytes_max: int) -> str:
    return raw if isinstance(raw, str) and is_name(raw, bytes_max) else ""
