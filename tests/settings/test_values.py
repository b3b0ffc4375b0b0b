"""Single values of the configuration: durations, conditions, masked passwords."""

from __future__ import annotations

from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from analyzer.config.values import UNITS_S, ConditionTable, ConditionValues, duration_between, format_duration
from analyzer.kernel.secrets import masked
from analyzer.plan.mapping import Pattern

CONDITIONS = TypeAdapter(ConditionTable)
DURATION = TypeAdapter(Annotated[float, duration_between(0.01, 10 * 86_400)])


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("10m", 600),
        ("0.1s", 0.1),
        ("250ms", 0.25),
        ("2 h", 7200),
        ("7d", 604_800),
        (3, 3),
        (0.5, 0.5),
        ("2", 2),
        ("10.5", 10.5),
    ],
)
def test_a_duration_is_converted_from_its_unit(text: object, duration_s: float) -> None:
    assert DURATION.validate_python(text) == duration_s


@pytest.mark.parametrize(
    "text", ["", "ten", "10 m s", "-1s", "1e3s", "11d", "1ms", True, None, [1], 0, "nan"]
)
def test_other_text_and_durations_out_of_range_are_faults(text: object) -> None:
    with pytest.raises(ValidationError):
        DURATION.validate_python(text)


@given(st.integers(1, 999), st.sampled_from(sorted(UNITS_S)))
def test_a_formatted_duration_is_read_back_unchanged(count: int, unit: str) -> None:
    wide = TypeAdapter(Annotated[float, duration_between(0, 1e9)])
    assert wide.validate_python(format_duration(count * UNITS_S[unit])) == pytest.approx(
        count * UNITS_S[unit]
    )


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("denied", ("denied",)),
        (429, ("429",)),
        (True, ("true",)),
        ([429, "500-599", 429], ("429", "500-599")),
        ({"glob": "/v1/*"}, (Pattern("glob", "/v1/*"),)),
        ({"prefix": ["/a", "/b", "/a"]}, (Pattern("prefix", "/a"), Pattern("prefix", "/b"))),
        (
            ["/x", {"match": "^/y"}, {"glob": "*.php"}],
            ("/x", Pattern("match", "^/y"), Pattern("glob", "*.php")),
        ),
    ],
)
def test_the_values_of_a_condition_are_kept_as_text(value: object, texts: tuple[str | Pattern, ...]) -> None:
    for written, is_not in ((value, False), ({"not": value}, True)):
        assert CONDITIONS.validate_python({"status": written}) == {"status": ConditionValues(texts, is_not)}


@pytest.mark.parametrize(
    "value",
    [
        *("", [], None, 1.5, {"a": 1}, "599-500", [["x"], {}], {"not": []}, {"not": {"not": "a"}}),
        *({"glob": []}, {"glob": {"prefix": "a"}}, {"glob": "a", "prefix": "b"}, {"match": "a*"}),
        {"prefix": [f"/{number}" for number in range(101)]},
    ],
)
def test_a_value_that_no_field_can_equal_is_a_fault(value: object) -> None:
    with pytest.raises(ValidationError):
        CONDITIONS.validate_python({"status": value})


PASSWORDS = st.text(
    st.characters(exclude_categories=["Z", "C"], exclude_characters="@"), min_size=6, max_size=20
)


@given(PASSWORDS.filter(lambda password: password not in "postgresql+psycopg://ada:***@db/gatelock"))
def test_the_password_of_a_url_is_masked_anywhere_in_a_text(password: str) -> None:
    url = f"postgresql+psycopg://ada:{password}@db/gatelock"
    assert masked(f'cannot reach "{url}" (again)') == (
        'cannot reach "postgresql+psycopg://ada:***@db/gatelock" (again)'
    )


def test_secret_parameters_are_masked() -> None:
    assert masked("host=db password=s3cret sslpassword='x' user=ada") == (
        "host=db password=*** sslpassword=*** user=ada"
    )
    assert masked("https://db:5432/path") == "https://db:5432/path"
