from __future__ import annotations

from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from analyzer.config.secrets import masked
from analyzer.config.values import UNITS_S, ConditionValues, in_words, seconds

STRETCH = TypeAdapter(Annotated[float, seconds(0.01, 10 * 86_400)])


@pytest.mark.parametrize(
    ("text", "wanted"),
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
def test_a_duration_is_read_in_its_unit(text: object, wanted: float) -> None:
    assert STRETCH.validate_python(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "ten", "10 m s", "-1s", "1e3s", "11d", "1ms", True, None, [1], 0, "nan"]
)
def test_what_is_no_duration_within_bounds_is_refused(text: object) -> None:
    with pytest.raises(ValidationError):
        STRETCH.validate_python(text)


@given(st.integers(1, 999), st.sampled_from(sorted(UNITS_S)))
def test_a_stretch_in_words_reads_as_the_same_stretch(count: int, unit: str) -> None:
    wide = TypeAdapter(Annotated[float, seconds(0, 1e9)])
    assert wide.validate_python(in_words(count * UNITS_S[unit])) == pytest.approx(count * UNITS_S[unit])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("denied", ("denied",)),
        (429, ("429",)),
        (True, ("true",)),
        ([429, "500-599", 429], ("429", "500-599")),
    ],
)
def test_what_a_condition_wants_is_kept_as_text(value: object, wanted: tuple[str, ...]) -> None:
    assert TypeAdapter(ConditionValues).validate_python(value) == wanted


@pytest.mark.parametrize("value", ["", [], None, 1.5, {"a": 1}, "599-500", [["x"], {}]])
def test_what_no_field_could_equal_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ConditionValues).validate_python(value)


PASSWORDS = st.text(
    st.characters(exclude_categories=["Z", "C"], exclude_characters="@"), min_size=6, max_size=20
)


@given(PASSWORDS.filter(lambda password: password not in "postgresql+psycopg://ada:***@db/gatelock"))
def test_a_password_is_masked_wherever_its_url_stands(password: str) -> None:
    url = f"postgresql+psycopg://ada:{password}@db/gatelock"
    assert masked(f'cannot reach "{url}" (again)') == (
        'cannot reach "postgresql+psycopg://ada:***@db/gatelock" (again)'
    )


def test_parameters_that_hold_secrets_are_masked_too() -> None:
    assert masked("host=db password=s3cret sslpassword='x' user=ada") == (
        "host=db password=*** sslpassword=*** user=ada"
    )
    assert masked("https://db:5432/path") == "https://db:5432/path"
