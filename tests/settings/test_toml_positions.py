"""The lines of keys in a TOML file, compared with what tomllib reads."""

from __future__ import annotations

import tomllib
from textwrap import dedent
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.config.diagnostics.toml_positions import KeyPath, key_lines


def test_every_kind_of_key_has_a_line() -> None:
    text = dedent("""\
        # before
        top.dotted = 1
        [[sources]]
        topic = "a"  # [[not]] = "here"
        [sources.fields]
        "a key" = { path = "x",  unit = "s" }

        [[sources]]
        many = [
          "one",
          { two = 2 },
        ]
        [[sources.inner]]
        text = '''
        [[sources]]
        '''
        after = 1979-05-27 07:32:00
        """)
    lines = key_lines(text)
    assert lines["top", "dotted"] == 2
    assert lines[("sources",)] == lines["sources", 0] == 3
    assert lines["sources", 0, "topic"] == 4
    assert lines["sources", 0, "fields", "a key", "unit"] == 6
    assert lines["sources", 1] == 8
    assert lines["sources", 1, "many", 0] == 10
    assert lines["sources", 1, "many", 1, "two"] == 11
    assert lines["sources", 1, "inner", 0, "text"] == 14
    assert lines["sources", 1, "inner", 0, "after"] == 17


def test_a_table_opened_inside_an_array_belongs_to_its_last_element() -> None:
    lines = key_lines("[[a]]\n[[a]]\n[a.b.c]\nd = 1\n[a.b.e]\n")
    assert lines["a", 1, "b", "c", "d"] == 4
    assert lines["a", 1, "b"] == 3
    assert ("a", 0, "b") not in lines


KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,5}", fullmatch=True),
    st.sampled_from(['"a b"', '"]"', '"="', '"#"', '"\\""', "'\"'", '"[[x]]"', "''", '"a.b"', '"\\u00e9"']),
)
SCALARS = st.sampled_from(
    [
        "1",
        "-1.5e3",
        "true",
        "inf",
        "1979-05-27T07:32:00Z",
        "1979-05-27 07:32:00",
        "07:32:00",
        '""',
        "''",
        '"]}"',
        "'[#'",
        '"\\"]"',
        "'''\n]\n'''",
        '"""\n\\"""\n"""',
        '"""""a"""""',
        "''''b'''''",
        '"""\\\\"""',
    ]
)
GAPS = st.sampled_from(["", " ", "\t", "\n", " # ]}[{\"'\n", "\n\n  "])


@st.composite
def values(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.sampled_from(["scalar", "array", "inline"] if depth else ["scalar"]))
    if kind == "scalar":
        return draw(SCALARS)
    if kind == "array":
        items = draw(st.lists(values(depth=depth - 1), max_size=3))
        gaps = [draw(GAPS) for _ in range(2 * len(items) + 1)]
        body = ",".join(f"{gaps[2 * i]}{item}{gaps[2 * i + 1]}" for i, item in enumerate(items))
        return f"[{body}{',' if items and draw(st.booleans()) else ''}{gaps[-1]}]"
    keys = draw(st.lists(KEYS, max_size=3, unique=True))
    return "{" + ", ".join(f"{key} = {draw(values(depth=depth - 1))}" for key in keys) + "}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    text = ""
    for _ in range(draw(st.integers(0, 8))):
        name = ".".join(draw(st.lists(KEYS, min_size=1, max_size=3)))
        text += draw(
            st.one_of(
                values().map(lambda value, name=name: f"{name} = {value}"),
                st.sampled_from([f"[{name}]", f"[[{name}]]", f"[[ {name} ]] # x", "", "# x"]),
            )
        )
        text += draw(st.sampled_from(["\n", "\r\n", " # '\n", "\n\n"]))
    return text


def paths(found: Any, at: KeyPath = ()) -> set[KeyPath]:
    """The path of every key and element that tomllib read."""
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return {at}.union(*(paths(item, (*at, key)) for key, item in items))


@given(documents())
@example('a = """""a"""""\nb = 1\n')
def test_the_scanner_finds_exactly_the_keys_that_tomllib_reads(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # for example a table that is defined twice
        return
    assert set(key_lines(text)) == paths(document) - {()}


@given(documents(), st.sampled_from(["", "\n", "\n\n# gap\n", "\r\n"]), documents())
def test_a_key_has_the_line_on_which_it_is_written(before: str, gap: str, after: str) -> None:
    text = f"{before}\n{gap}[here-it-is]\nneedle = 1\n{after}"
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    line = text[: text.index("needle")].count("\n") + 1
    assert key_lines(text)["here-it-is", "needle"] == line
