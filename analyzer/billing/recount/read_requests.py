"""One record as the request in it, by a mapping as the plan stores it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analyzer.billing.recount.log_documents import READERS, LogReader, ValueAt
from analyzer.billing.recount.log_envelopes import Unreadable, unwrap_envelopes
from analyzer.billing.recount.single_values import (
    TIME_MS_MAX,
    Digits,
    StoredField,
    address_network,
    comparable_text,
    counted_text,
    digested,
    is_host_name,
    is_missing,
    is_name,
    parse_client,
    stored_number,
    time_ms,
)
from analyzer.billing.recount.text_patterns import pattern_holds

REQUESTS, UNRECORDED, DUPLICATES = "requests", "unrecorded requests", "duplicate records"


class Unsupported(ValueError):
    """A plan or a source that the second counter cannot count by."""


class Request(NamedTuple):
    """The request in a record."""

    ms: int
    caller: str
    id: str  # of the event; "" for none
    is_denied: bool
    series: Sequence[tuple[str, str, str]]  # grouping, key, resource
    amounts: Mapping[str, int]  # by meter


class SourceReading:
    """Reads the records of one source.

    Args:
        source: The name of the source.
        plan: Of the stored plan, behind its format.
        secrets: Of digests, by fingerprint.
        readers: By format.
    """

    def __init__(
        self,
        source: str,
        plan: Mapping[str, Any],
        secrets: Mapping[str, bytes],
        readers: Mapping[str, LogReader] = READERS,
    ) -> None:
        if source not in plan.get("sources", {}):
            raise Unsupported(f"the plan has no source {source}")
        mapping = dict(plan["sources"][source])
        if mapping["format"] not in readers:
            raise Unsupported(f"records in the format {mapping['format']} are not read again")
        self.reader = readers[mapping["format"]]
        if not mapping["fields"] and self.reader.fields:
            mapping["fields"] = self.reader.fields
            mapping["time"] = mapping["time"] or self.reader.time
        mapping["caller"] = mapping["caller"] or self.reader.caller
        paths = [field["path"] for field in mapping["fields"].values()]
        self._read = self.reader.make([*paths, mapping["time"]["path"]] if mapping["time"] else paths)
        self.mapping, self.secrets = mapping, secrets
        self.fields: Mapping[str, StoredField] = mapping["fields"]
        self.groupings: Sequence[str] = plan["groupings"]
        self.named_values: Mapping[str, str] = plan.get("named_values", {})
        judged = {policy.get("meter") for _, policy in plan["policies"]}
        self.meters = [
            meter for meter in plan["meters"] if meter["join"] != "distinct" or meter["name"] in judged
        ]
        self.rule: Mapping[str, Any] | None = mapping.get("id")
        needed = {field.get("digest", "") for field in self.fields.values()} - {""}
        if not needed <= secrets.keys():
            raise Unsupported(f"the digest_secret of the source {source} is not there")

    def read_request(self, value: bytes | None, kafka_ms: int | None) -> Request:
        """Returns the request in a record. Raises Unreadable for a record that is rejected."""
        mapping = self.mapping
        if value is None or len(value) > mapping["value_bytes_max"]:
            raise Unreadable("no value, or too large")
        look_up = self._read(unwrap_envelopes(value, mapping.get("envelope", ())))
        named_caller = self._caller(look_up)
        ms = self._time_ms(look_up, kafka_ms)
        amounts = self._amounts(look_up)
        is_denied = bool(mapping["deny_if"]) and self._all_hold(mapping["deny_if"], look_up)
        caller = named_caller if is_denied or self._keeps_name(look_up) else self._address_instead(look_up)
        series = [self._series(grouping, caller, look_up) for grouping in self.groupings]
        return Request(ms, caller, self._id(look_up), is_denied, series, amounts)

    def _time_ms(self, look_up: ValueAt, kafka_ms: int | None) -> int:
        mapping = self.mapping
        if mapping["time"] is None:
            if kafka_ms is None:
                raise Unreadable("no time")
            ms = kafka_ms
        else:
            ms = time_ms(look_up(mapping["time"]["path"]), mapping["time"])
        if kafka_ms is not None:
            earliest, latest = kafka_ms - mapping["past_ms_max"], kafka_ms + mapping["future_ms_max"]
            if not earliest <= ms <= latest:
                raise Unreadable("too old, or in the future")
        if not 0 <= ms < TIME_MS_MAX:
            raise Unreadable("a time out of range")
        return ms

    def _caller(self, look_up: ValueAt) -> str:
        names = list(self.mapping["caller"])
        if self.fields.get("address", {}).get("type") == "address":
            names.append("address")
        values = [(name, look_up(self.fields[name]["path"])) for name in names if name in self.fields]
        for name, value in values:
            if value is None:
                continue
            if not isinstance(value, str) or isinstance(value, Digits):
                raise Unreadable("a caller is not text")
            caller = self._name_in(name, value)
            if caller:
                return caller
        return "unnamed:"

    def _name_in(self, name: str, value: str) -> str:
        """Returns the caller that a text in a field names; "" if it cannot."""
        field = self.fields[name]
        if value in {"", "-"}:
            return ""
        text = value
        if field["type"] == "address":
            text = parse_client(value, field)
        elif name == "host":
            text = "" if parse_client(value, {"prefix6": 128}) or not is_host_name(value) else value
        if not is_name(text, self.mapping["name_bytes_max"]):
            return ""
        return f"{name}:{digested(text, field, self.secrets)}"

    def _address_instead(self, look_up: ValueAt) -> str:
        """Returns the caller of a record whose caller's name must not count."""
        field = self.fields.get("address", {})
        value = look_up(field["path"]) if field.get("type") == "address" else None
        if not isinstance(value, str) or isinstance(value, Digits):
            return "unnamed:"
        return self._name_in("address", value) or "unnamed:"

    def _keeps_name(self, look_up: ValueAt) -> bool:
        try:
            return self._all_hold(self.mapping.get("count_if", ()), look_up)
        except Unreadable:
            return False

    def _all_hold(self, conditions: Sequence[Sequence[Any]], look_up: ValueAt) -> bool:
        if any(name not in self.fields for name, _ in conditions):
            return False
        results = []
        for name, expected in conditions:  # each may be unreadable
            is_not = isinstance(expected, dict)
            values = expected["not"] if is_not else expected
            results.append(self._holds(name, values, look_up) != is_not)
        return all(results)

    def _holds(self, name: str, wanted: Sequence[str | Sequence[str]], look_up: ValueAt) -> bool:
        """Whether a field has one of some values, or matches one of some patterns."""
        values = [value for value in wanted if isinstance(value, str)]
        patterns = [item for item in wanted if not isinstance(item, str)]
        field, value = self.fields[name], look_up(self.fields[name]["path"])
        if field["type"] in ("resource", "address"):
            text = counted_text(value, field, self.mapping["name_bytes_max"], self.secrets)
            texts = {text}
        else:
            comparable = comparable_text(value)
            if comparable is None:
                raise Unreadable("a field is not text")
            text = comparable
            texts = {text, text.split(";")[0]}
        if texts & set(values) or any(_is_in_range(part, span) for part in texts for span in values):
            return True
        return any(pattern_holds(kind, pattern, text) for kind, pattern in patterns)

    def _amounts(self, look_up: ValueAt) -> dict[str, int]:
        """Returns what the request adds to each meter whose conditions hold."""
        weight = self._weight(look_up)
        amounts: dict[str, int] = {REQUESTS: weight}
        if self.mapping.get("weight") is not None:
            amounts[UNRECORDED] = weight - 1
        for meter in self.meters:
            field = self.fields.get(meter["field"] or "")
            number: int | None = weight
            if meter["field"]:
                number = None
                if field is not None and field["type"] == "number":
                    number = stored_number(look_up(field["path"]), field)
            holds = self._all_hold(meter["where"], look_up)
            if meter["join"] == "distinct":
                if field is not None and field["type"] != "number":
                    self._holds(meter["field"], [], look_up)
            elif number is not None and holds:
                amounts[meter["name"]] = number
        return amounts

    def _weight(self, look_up: ValueAt) -> int:
        """Returns how many requests the record stands for."""
        name = self.mapping.get("weight")
        if name is None:
            return 1
        field, value = self.fields[name], look_up(self.fields[name]["path"])
        if is_missing(value) and field["default"] is not None:
            return 1
        return stored_number(value, field)

    def _series(self, grouping: str, caller: str, look_up: ValueAt) -> tuple[str, str, str]:
        base, _, second = grouping.partition("+")
        name, _, bits = base.partition("/")

        def text(name: str) -> str:
            field = self.fields.get(self.named_values.get(name, name))
            if field is None:
                return ""
            return counted_text(look_up(field["path"]), field, self.mapping["name_bytes_max"], self.secrets)

        if name == "caller":
            key = caller
        elif name == "everyone":
            key = ""
        elif bits:
            key = address_network(text("address"), 6 if name == "address6" else 4, int(bits))
        else:
            key = text(name)
        return grouping, key, text(second) if second else ""

    def _id(self, look_up: ValueAt) -> str:
        if self.rule is None:
            return ""
        value = look_up(self.fields[self.rule["field"]]["path"])
        if isinstance(value, Digits):
            return comparable_text(value) or ""
        return "" if not isinstance(value, str) or value == "-" else value


def _is_in_range(text: str, span: str) -> bool:
    low, _, high = span.partition("-")
    numbers = (low, text, high)
    if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):
        return False
    return int(low) <= int(text) <= int(high)


def stored_plan(text: str) -> Mapping[str, Any]:
    """Returns a plan without its format. Raises Unsupported for a format other than 1."""
    format_, body = json.loads(text)
    if format_ != 1:
        raise Unsupported(f"a plan has format {format_}, this version reads format 1")
    plan: Mapping[str, Any] = body
    return plan
