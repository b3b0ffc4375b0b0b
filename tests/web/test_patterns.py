"""Patterns of the OpenAPI document and parsers of the server: what one takes, the other takes."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.acting.parameters import Impossible, Length, Time, ValueKind
from analyzer.faces.api.endpoint_table import ENDPOINTS
from tests.support.depth import deeper

KINDS: dict[str, ValueKind] = {
    str(parameter.param.kind): parameter.param.kind
    for endpoint in ENDPOINTS
    for parameter in endpoint.all_parameters
    if parameter.param.kind.schema().get("type") == "string"
}
WITH_PATTERN = {name: kind for name, kind in KINDS.items() if "pattern" in kind.schema()}

moments = st.integers(0, 32 * 10**9).map(lambda second: datetime.fromtimestamp(second, UTC))
zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.one_of(
    moments.map(lambda moment: moment.date().isoformat()),
    st.builds(lambda moment, zone: moment.astimezone(zone).isoformat(), moments, zones),
    moments.map(lambda moment: moment.strftime("%Y-%m-%d %H:%MZ")),
    moments.map(lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ")),
    moments.map(lambda moment: moment.strftime("%Y%m%dT%H%M%SZ")),
    moments.map(lambda moment: moment.strftime("%G-W%V-%u")),
)
lengths = st.builds(
    lambda number, blanks, unit: f"{number}{' ' * blanks}{unit}",
    st.one_of(st.integers(0, 10**12), st.floats(0, 1e6, allow_nan=False)),
    st.integers(0, 2),
    st.sampled_from(["ms", "s", "m", "h", "d", "w", ""]),
)
names = st.builds(
    lambda kind, text: f"{kind}:{text}",
    st.sampled_from(["api_key", "user", "address", "Tenant", ""]),
    st.text(max_size=20),
)
anything = st.one_of(
    times, lengths, names, st.text(max_size=30), st.sampled_from(["today", "none", " 2h", "2h\n"])
)


def is_permitted(schema: dict[str, Any], text: str) -> bool:
    """Whether a text fits a schema, as JSON Schema reads a pattern: anywhere, `$` at the very end."""
    length = schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", 1 << 30)
    pattern = schema.get("pattern", "").replace("$", r"\Z")
    in_words = text in schema.get("enum", [text])
    return length and in_words and re.search(pattern, text) is not None


@pytest.mark.parametrize("name", WITH_PATTERN)
@given(data=st.data())
@settings(max_examples=deeper(25), deadline=None)
def test_a_value_of_the_pattern_is_read_or_cannot_be_meant(name: str, data: st.DataObject) -> None:
    kind = WITH_PATTERN[name]
    schema = kind.schema()
    text = data.draw(
        st.from_regex(schema["pattern"].replace("$", r"\Z")).filter(lambda t: is_permitted(schema, t))
    )
    with suppress(Impossible):
        kind.check(text)


@pytest.mark.parametrize("name", KINDS)
@given(text=anything)
@settings(max_examples=deeper(100), deadline=None)
def test_a_value_that_the_server_takes_fits_the_document(name: str, text: str) -> None:
    kind = KINDS[name]
    try:
        kind.check(text)
    except ValueError:
        return
    assert is_permitted(kind.schema(), text)


@pytest.mark.parametrize(
    "day", ["2026-10-29", "2026-10-30", "2026-10-31T23:59:59Z", "2026-10-31 23:59+02:00"]
)
def test_the_last_days_of_a_month_are_permitted(day: str) -> None:
    assert is_permitted(Time().schema(), day)
    assert Time().check(day) == day


def test_a_day_that_a_month_does_not_have_cannot_be_meant() -> None:
    with pytest.raises(Impossible, match="is not a time"):
        Time().check("2026-02-30")
    with pytest.raises(Impossible):
        Length(366).check("0s")
