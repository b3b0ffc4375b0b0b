"""Records and record sets, valid and hostile, as strategies of Hypothesis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from msgspec import UNSET

from analyzer.kernel.model import Counter, DistinctLayout, Partition, Record, Records, RecordSet, SlotLayout
from analyzer.plan.mapping import (
    CALLER_FACTS,
    AddressField,
    Condition,
    Field,
    Not,
    NumberField,
    Pattern,
    ResourceField,
    SourceMapping,
    TextField,
    TimeField,
)
from analyzer.plan.meters import Meter
from tests.support.counters import CounterClass
from tests.support.recordsets import (
    ABORT,
    COMMIT,
    LOG_APPEND_TIME,
    NOW_MS,
    PACK,
    TRANSACTIONAL,
    Entry,
    batch,
    control,
    records,
    wrapped,
)

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
DAY_MS = 86_400_000

NAMES = [
    "acme", "ann", "", "x" * 255, "x" * 256, "x" * 300, "é" * 128, "é" * 129, "\u2066", "k\n", "a\x7f",
    "a\x00b",
]  # fmt: skip
NAMES += ["1", "true", "ann@example.org", "api_key:acme", "\ud800", "\ud83d\ude00", "192.0.2.1", " ", "a b"]
ADDRESSES = [
    "192.0.2.1", "::ffff:192.0.2.1", "2001:DB8::1", "2001:db8:0:0:ffff::1", "fe80::1%eth0", "1.2.3", "",
    "01.2.3.4",
]  # fmt: skip
PATHS = [
    "/v1/items/7", "/v1/items/7?x=/v1", "/v1/items/", "/v1/search", "/v1/search/", "/v1/search#a", "/", "",
    "/v1/é/x",
]  # fmt: skip
PATHS += ["/v1/items/7/tags", "/v1//tags", "/v1/items/7/8/tags", "/v1/items/a\nb"]
SECONDS = NOW_MS // 1000

# As written in a document: whole numbers, fractions, too long, too large, too small.
NUMBERS = [
    "0", "-0", "-0.0", "-1", "1", "7", "404", "429", "500", "599", "600", "0.1", "0.29", "1.0000019", "1e3",
    "1E-7",
    "9007199254740992", "9007199254740993", "9007199254.740992", "9007199254.7409929",
    "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "1e999", "-1e999", "1e-999", "1e99999999999",
    "0e99999999999",
    "9" * 40, "9" * 41, "9" * 400, "9" * 5000, "0." + "9" * 400, "1" + "0" * 50 + "e-50", "-0.0000001",
    "-5.5",
]  # fmt: skip
NOT_NUMBERS = ["01", "1.", ".5", "+1", "1e", "NaN", "Infinity", "-", "0x1", "1_0"]
TIMES = [
    str(NOW_MS), str(SECONDS), f"{SECONDS}.999", f"{SECONDS}.9999999999", f"{NOW_MS}000", f"{NOW_MS}000000",
    str(NOW_MS + 300_000), str(NOW_MS + 300_001), str(NOW_MS - 35 * DAY_MS), str(NOW_MS - 35 * DAY_MS - 1),
    f"{NOW_MS}.5", f"{NOW_MS + 300_000}.5", "0", "-1", "-0.5", "253339228799999", "253339228800000",
    f"{SECONDS}e3",
]  # fmt: skip
TIMESTAMPS = [
    "2026-11-20T22:13:20Z", "2026-11-20t22:13:20.123456789z", "2026-11-20 23:13:20+01:00",
    "2026-11-20T22:13:20",
    "2026-11-20T22:13:60Z", "2026-11-20T22:13:61Z", "2026-02-29T00:00:00Z", "2026-11-20T22:13:20-00:30",
    "0000-01-01T00:00:00Z",
    "20/Nov/2026:22:13:20 +0000", "[20/Nov/2026:23:13:20 +0100]", "[20/Nov/2026:23:13:20 +0100",
    "20/Foo/2026:22:13:20 +0000",
    "2026-11-20T22:13:20.Z", "2026-11-20T22:13:20+24:00", "2026-11-20T24:00:00Z", "\uff12026-11-20T22:13:20Z",
    "", "now", "2026-11-20T22:13:20+0000", "2026-11-20 22:13:20,5", "2026-11-20 23:13:20.25 +0100",
    "2026-11-20T22:13:20 UTC", "2026-11-20T23:13:20+01", "2026-11-20T22:13:20,Z", "2026-11-20T22:13:20 ",
    "2026-11-20T22:13:20.1.2Z", "2026-11-20T22:13:20+1:00", "2026-11-20T22:13:20  Z", "2026-11-20T22:13:60,5",
    "2026-10-25T02:30:00", "2026-03-29T02:30:00,999",
]  # fmt: skip
LITERALS = [
    "null", "true", "false", "[]", "{}", "[[]]", '{"id":1}', "[1e999]", '"\\ud800"', '"\\ud83d\\ude00"',
    '"\\u0000"',
]  # fmt: skip

KEYS = [
    "policy",
    "key",
    "user",
    "ip",
    "ts",
    "n",
    "cost",
    "took",
    "path",
    "status",
    "org",
    "in",
    "x",
    "since",
    "tz",
]
SNIPPETS = [
    b"\\ud800", b"\\u0000", b"\x00", b"\x1f", b"\x7f", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xc3",
    b"\xa9",
    b'"', b"\\", b"\\x", b"{", b"}", b"[", b"]", b":", b",", b" ", b"\n", b"\xef\xbb\xbf", b"k\\u0065y",
    b"\xe2\x80\xae",
]  # fmt: skip


def quoted(texts: Sequence[str]) -> st.SearchStrategy[str]:
    """Generates the texts as JSON strings, with and without escapes."""
    return st.tuples(st.sampled_from(texts), st.booleans()).map(
        lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1] or "\ud800" in drawn[0])
    )


ANYTHING = st.one_of(
    st.sampled_from(NUMBERS + NOT_NUMBERS + LITERALS + TIMES), quoted(NAMES + ADDRESSES + PATHS + TIMESTAMPS)
)
USUAL = {
    "key": quoted(["acme", "ann", "1"]),
    "user": quoted(["ann", "bob", ""]),
    "ip": quoted(ADDRESSES[:4]),
    "ts": st.one_of(
        st.sampled_from(TIMES[:8]), quoted(TIMESTAMPS[:4] + TIMESTAMPS[9:11] + TIMESTAMPS[19:24] + TIMES[:6])
    ),
    "n": st.sampled_from(["0", "1", "7", "9007199254740992", '"7"', '"0"', '"-"', '""', '"1.0"', '"-1"']),
    "cost": st.sampled_from(["0.1", "0.29", "7", "1.0000019", "2e3", '"0.29"', '"2e3"', '"2e"', '".5"']),
    "took": st.sampled_from(["0.004", "1.5", "12", '"0.004"', '"-"']),
    "path": quoted(PATHS),
    "status": st.sampled_from(
        [
            "200",
            "404",
            "429",
            "500",
            '"429"',
            "true",
            '"429;p=1"',
            '";429"',
            r'"429;policy=\"daily\""',
            r'"429;policy=\"a\\\"b\";x=1"',
            r'"429;policy=\"da"',
        ]
    ),
    "policy": st.sampled_from(['"daily"', '""', "7", r'"denied;policy=\"hourly\""', '"a\\u0000b"', "null"]),
    "org": quoted(["o1", "o2", ""]),
    "since": st.sampled_from(
        ['"2026-01-31"', '"2024-02-29"', '"2026-02-30"', '"20260131"', '"31.1."', "20260131"]
    ),
    "tz": st.sampled_from(
        ['"Europe/Berlin"', '"UTC"', '"Etc/GMT+3"', '"a b"', '"a/"', '"' + "x" * 33 + '"', "null"]
    ),
    "in": st.sampled_from(['{"id":"deep","n":3}', '{"id":7}', "null", "{}", '"flat"', "[]"]),
    "x": ANYTHING,
}


def spelled(key: str, escaped: bool) -> str:
    """Returns a key as JSON; with `escaped` each letter is an escape."""
    return '"' + "".join(f"\\u{ord(char):04x}" for char in key) + '"' if escaped else json.dumps(key)


FIFTH = st.integers(0, 4).map(lambda drawn: drawn == 0)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Generates a JSON document; most fields are valid, so that a bad one is often the only one."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=0, max_size=14))
    if draw(st.integers(0, 9)) > 0:
        keys = ["key", "ts", "n", "took", "cost", *keys]
    odd = draw(st.integers(0, 3)) == 0
    pairs = [
        (spelled(key, draw(st.integers(0, 19)) == 0), draw(ANYTHING if odd and draw(FIFTH) else USUAL[key]))
        for key in keys
    ]
    space = draw(st.sampled_from(["", "", " ", "\n\t"]))
    text = "{" + f",{space}".join(f"{key}{space}:{value}" for key, value in pairs) + "}" + space
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(SNIPPETS)) + data[at + draw(st.integers(0, 2)) :]
    return data


REQUESTS = [
    "GET /v1/search HTTP/1.1", "GET /v1/items/7?x=1 HTTP/2.0", "-", "", r"\x16\x03", "GET /",
    "get / HTTP/1.1",
    r"GET /\"quoted\" HTTP/1.1", "GET /a b HTTP/1.1", "OPTIONS * HTTP/1.0", "GET  HTTP/1.1", "GET / FTP/1",
]  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Generates a line of an access log."""

    def pick(*texts: str) -> str:
        return draw(st.sampled_from(texts))

    words = [
        pick(*ADDRESSES, "host.example", "-"),
        "-",
        pick("-", "-", "ann", "ann lee", "a[b", "ann ", '"'),
        f"[{pick('20/Nov/2026:22:13:20 +0000', '20/Nov/2026:22:13:20 +0000', *TIMESTAMPS[9:13], '')}]",
        f'"{pick(*REQUESTS)}"',
        pick("200", "429", "-", "2000", "20"),
        pick("0", "7", "-", "9007199254740993", "9" * 50, "x"),
    ]
    tail = pick("", ' "-" "curl"', ' "http://a/" "cut', " 0.004", " ", "\r", '"')
    data = (" ".join(words) + tail).encode()
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(SNIPPETS)) + data[at + draw(st.integers(0, 2)) :]
    return data


VALUES = st.one_of(
    documents(), documents(), documents(), st.none(), st.binary(max_size=40), st.just(b"{" * 3000)
)

FIELDS: dict[str, Field] = {
    "api_key": TextField(("key",)),
    "user": TextField(("user",)),
    "address": AddressField(("ip",)),
    "resource": ResourceField(
        ("path",), ("/v1/{kind}", "/v1/items/{id}", "/v1/search", "/v1/{kind}/{id}/tags"), "none"
    ),
    "status": TextField(("status",)),
    "tenant": TextField(("org",)),
    "deep": TextField(("in", "id")),
    "n": NumberField(("n",)),
    "deep_n": NumberField(("in", "n"), default=5),
    "cost": NumberField(("cost",), "decimal"),
}
CONDITIONS: list[tuple[Condition, ...]] = [
    (),
    (Condition("status", ("429",)),),
    (Condition("status", ("500-599", "true", "404")),),
    (Condition("status", ("400-499",)), Condition("tenant", ("o1",))),
    (Condition("resource", ("/v1/search",)),),
    (Condition("address", ("192.0.2.1",)),),
    (Condition("n", ("0-7",)),),
    (Condition("absent", ("1",)),),
    (Condition("status", Not(("200-399", "x"))), Condition("tenant", Not(("o1",)))),
    (Condition("resource", Not(("/v1/search",))),),
    (Condition("absent", Not(("1",))),),
    (Condition("tenant", ("o2", Pattern("prefix", "o"))), Condition("status", (Pattern("match", "^[45]"),))),
    (Condition("resource", Not((Pattern("glob", "/v1/items/*"),))),),
]

REFUSED = Condition("status", Not(("401", "404", "500-599")))
COUNT_IF: list[Any] = [
    UNSET,
    UNSET,
    (REFUSED,),
    (Condition("status", Not((Pattern("match", "^40[13]|e$"),))),),
    (Condition("status", ("200-399",)),),
    (REFUSED, Condition("tenant", ("o1", ""))),
    (Condition("n", ("0-7",)), Condition("address", Not(("192.0.2.1",)))),
    (Condition("absent", Not(("1",))),),
]


@st.composite
def json_mappings(draw: st.DrawFn) -> SourceMapping:
    unit = draw(st.sampled_from(["s", "ms", "us", "ns", "rfc3339", "clf"]))
    fields = dict(FIELDS)
    fields["address"] = AddressField(("ip",), draw(st.sampled_from([128, 64])))
    kind = draw(st.sampled_from(["duration", "duration", "decimal", "money", "whole"]))
    took_unit = draw(st.sampled_from(["s", "ms", "us", "ns"]))
    fields["took"] = NumberField(("took",), kind, took_unit, draw(st.sampled_from([0, 9, None])))
    if draw(st.integers(0, 9)) == 0:
        fields["deep"] = TextField(("in",))  # a parent of deep_n
    if draw(st.booleans()):
        fields["policy"] = TextField(("policy",))
    if draw(st.integers(0, 9)) == 0:
        fields["tenant"] = TextField(('or"g',))  # a key that msgspec does not accept
    fields |= {"plan": TextField(("status",)), "zone": TextField(("tz",)), "anchor": TextField(("since",))}
    fields |= {f"tenant_{name}": fields[name] for name in ("plan", "zone", "anchor")}
    callers = [
        ("api_key",),
        ("api_key", "user", "address"),
        ("user", "api_key"),
        ("deep", "address"),
        ("account", "user"),
    ]
    zones = [UNSET, UNSET, "Europe/Berlin", "Asia/Kathmandu"] if unit == "rfc3339" else [UNSET]
    times = [TimeField(("ts",), unit, draw(st.sampled_from(zones))), TimeField(("ts",), "ms"), None]
    return SourceMapping(
        time=draw(st.sampled_from(times)),
        caller=draw(st.sampled_from(callers)),
        fields=fields,
        deny_if=draw(st.sampled_from(CONDITIONS)),
        weight=draw(st.sampled_from([UNSET, UNSET, "n"])),
        count_if=draw(st.sampled_from(COUNT_IF)),
        facts=draw(st.sampled_from([UNSET, ("plan",), ("tenant", "zone"), CALLER_FACTS])),
        value_bytes_max=draw(st.sampled_from([1 << 20, 1 << 20, 120])),
        batch_bytes_max=draw(st.sampled_from([1 << 20, 1 << 20, 3000])),
        sample_bytes=draw(st.sampled_from([256, 16, 0])),
    )


@st.composite
def combined_mappings(draw: st.DrawFn) -> SourceMapping:
    if draw(st.booleans()):
        return SourceMapping(format="combined")
    fields: dict[str, Field] = {
        "address": AddressField(("address",), 64),
        "user": TextField(("user",)),
        "resource": ResourceField(("path",), ("/v1/items/{id}", "/v1/search")),
        "status": TextField(("status",)),
        "tenant": TextField(("agent", "x")),
        "n": NumberField(("bytes",)),
        "cost": NumberField(("bytes",), "decimal"),
    }
    return SourceMapping(
        format="combined",
        time=draw(st.sampled_from([TimeField(("time",), "clf"), TimeField(("time",), "rfc3339"), None])),
        caller=draw(st.sampled_from([("address",), ("user", "address")])),
        fields=fields,
        deny_if=draw(
            st.sampled_from([(), (Condition("status", ("429",)),), (Condition("method", ("GET",)),)])
        ),
        weight=draw(st.sampled_from([UNSET, UNSET, "n"])),
        count_if=draw(st.sampled_from(COUNT_IF)),
    )


GROUPINGS = st.sampled_from(
    [
        ("caller",),
        ("caller", "caller+resource"),
        ("caller", "caller+resource", "resource"),
        ("resource",),
        ("caller", "tenant", "address", "everyone", "tenant+resource"),
        ("caller+resource", "address/24", "address6/56", "address", "address/1+resource"),
        ("caller", "caller+model", "model", "tenant+verb", "model+resource"),
    ]
)
NAMED_VALUES = {"model": "user", "verb": "method"}  # the field of each
METERS = [
    Meter("requests"), Meter("volume", "n"), Meter("largest", "n", "max"), Meter("busy", "took"),
    Meter("spent", "cost", where=(Condition("status", ("200-399",)),)),
    Meter("errors", where=(Condition("status", ("500-599",)),)), Meter("deep", "deep_n"),
    Meter("others", where=(Condition("status", Not(("200-399",))),)),
    Meter("items", where=(Condition("resource", (Pattern("glob", "/v1/i*/*"), Pattern("glob", "*.php"))),)),
    Meter("named", where=(Condition("user", Not((Pattern("match", "(?i)^a|[^a-z]$"), "bob"))),)),
    Meter("searches", where=(Condition("resource", ("/v1/search", "/v1/items/7")),)),
    Meter("strange", "nowhere"), Meter("absent", where=(Condition("nothing", ("1",)),)),
]  # fmt: skip


VALUE_METERS = [
    Meter("paths", "resource", "distinct"), Meter("addresses", "address", "distinct"),
    Meter("users", "user", "distinct", where=(Condition("status", ("200-399",)),)),
    Meter("failing", "user", "distinct", where=(Condition("status", Not(("200-399",))),)),
    Meter("orgs", "tenant", "distinct"), Meter("ghosts", "nowhere", "distinct"),
]  # fmt: skip


class Wanted(NamedTuple):
    """Arguments of a counter, besides its mappings."""

    groupings: Sequence[str]
    meters: Sequence[Meter]
    slots: Sequence[SlotLayout] = ()
    distinct: Sequence[DistinctLayout] = ()

    def new(self, counter_class: CounterClass, mapping: SourceMapping) -> Counter:
        """Returns a counter of records of the source "log"."""
        return counter_class(
            {"log": mapping},
            self.groupings,
            self.meters,
            named_values=NAMED_VALUES,
            slots=self.slots,
            distinct=self.distinct,
        )


@st.composite
def wanted(draw: st.DrawFn) -> Wanted:
    """Generates groupings, meters and slots."""
    groupings = draw(GROUPINGS)
    meters = draw(st.lists(st.sampled_from(METERS), unique=True, max_size=6))
    names = [meter.name for meter in meters] or ["requests"]
    values = draw(st.one_of(st.just([]), st.lists(st.sampled_from(VALUE_METERS), unique=True)))
    distinct = draw(distinct_of(groupings, values))
    return Wanted(groupings, [*meters, *values], draw(slots_of(groupings, names)), distinct)


def distinct_of(groupings: Sequence[str], meters: Sequence[Meter]) -> st.SearchStrategy[list[DistinctLayout]]:
    """Generates layouts of these groupings and meters of distinct values; none without a meter."""
    if not meters:
        return st.just([])
    names = st.sampled_from([meter.name for meter in meters])
    layouts = st.builds(DistinctLayout, st.sampled_from(groupings), st.sampled_from([1, 10, 900]), names)
    return st.lists(layouts, unique=True, max_size=3)


def slots_of(groupings: Sequence[str], meters: Sequence[str]) -> st.SearchStrategy[list[SlotLayout]]:
    """Generates slots of these groupings and meters; often none."""
    widths_s = st.sampled_from([1, 5, 7, 10, 50, 60, 900])
    chosen = st.lists(st.sampled_from(meters), unique=True, min_size=1, max_size=3).map(tuple)
    layouts = st.lists(
        st.builds(SlotLayout, st.sampled_from(groupings), widths_s, chosen),
        unique_by=lambda layout: layout[:2],
        max_size=3,
    )
    return st.one_of(st.just([]), layouts)


@st.composite
def entries(draw: st.DrawFn, values: st.SearchStrategy[bytes | None]) -> list[Entry]:
    """Generates the records of one batch: often of one shape, as clients write them, else of any."""
    chosen = draw(st.lists(values, max_size=12))
    if draw(st.booleans()):
        key = draw(st.sampled_from([None, b"k", b"k" * 70]))
        return [Entry(value, time=at // 3, key=key) for at, value in enumerate(chosen)]
    found, offset = [], -1
    for value in chosen:
        offset += draw(st.sampled_from([1, 1, 1, 4, 200]))
        time = draw(st.sampled_from([0, 1, -5, 70, 9000, -400_000, 40 * DAY_MS]))
        headers = draw(st.sampled_from([(), (), ((b"h", b"v"),), ((b"", None), (b"h", b""))]))
        key = draw(st.sampled_from([None, b"", b"key", b"k" * 64]))
        padding = draw(st.sampled_from([b""] * 60 + [b"\0"]))
        found.append(Entry(value, offset, time, key, headers, padding))
    return found


@st.composite
def batches(draw: st.DrawFn, base: int, values: st.SearchStrategy[bytes | None]) -> tuple[bytes, int]:
    """Generates a batch and the offset after it; some batches are damaged or have a false header."""
    producer = draw(st.integers(-1, 2))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return control(base, producer, draw(st.sampled_from([COMMIT, ABORT]))), base + 1
    chosen = draw(entries(values))
    codec = draw(st.sampled_from(list(PACK)))
    attributes = draw(st.sampled_from([0, 0, TRANSACTIONAL, LOG_APPEND_TIME]))
    if draw(st.integers(0, 4)):
        data = batch(chosen, base, codec=codec, attributes=attributes, producer=producer)
        return data, base + records(chosen)[1] + 1 if chosen else base + 1
    plain, last = records(chosen)
    last = max(0, last + draw(st.sampled_from([0, 0, 3, -1])))
    cut = draw(st.integers(0, 20))
    if cut == 0 and plain:
        at = draw(st.integers(0, len(plain) - 1))
        plain = plain[:at] + bytes([draw(st.integers(0, 255))]) + plain[at + 1 :]
    elif cut == 1:
        plain = plain[: draw(st.integers(0, len(plain)))]
    number, pack = PACK[codec]
    data = wrapped(
        pack(plain),
        count=len(chosen) + draw(st.sampled_from([0] * 8 + [1, -1, 10**6])),
        last=last,
        base=base,
        attributes=attributes | draw(st.sampled_from([number] * 8 + [5, 7, 0x20])),
        first_ms=draw(st.sampled_from([NOW_MS, NOW_MS, NOW_MS, -1, 2**63 - 1, 0])),
        greatest_ms=draw(st.sampled_from([NOW_MS, NOW_MS + 5, -1])),
        producer=producer,
        magic=draw(st.sampled_from([2] * 20 + [1, 0])),
        crc_off_by=draw(st.sampled_from([0] * 20 + [1])),
    )
    return data, base + last + 1


@st.composite
def record_sets(draw: st.DrawFn, values: st.SearchStrategy[bytes | None]) -> RecordSet:
    begin = offset = draw(st.sampled_from([0, 0, 17, 2**40]))
    raw, aborted = b"", []
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.integers(0, 4)) == 0:
            aborted.append((draw(st.integers(0, 2)), offset + draw(st.sampled_from([0, 0, -3, 2]))))
        data, offset = draw(batches(offset, values))
        raw += data
        offset += draw(st.sampled_from([0, 0, 5]))
    if draw(st.integers(0, 5)) == 0:
        raw = raw[: len(raw) - draw(st.integers(0, min(90, len(raw))))]
    start = begin + draw(st.sampled_from([0, 0, 0, 2, 15]))
    return RecordSet(PART, start, raw, aborted, draw(st.sampled_from(["", "w1"])))


@st.composite
def plain_records(draw: st.DrawFn, values: st.SearchStrategy[bytes | None]) -> Records:
    start = draw(st.integers(0, 20))
    offset, items = start - draw(st.sampled_from([0, 0, 2])), []
    for value in draw(st.lists(values, max_size=12)):
        kafka_ms = draw(st.sampled_from([None, NOW_MS, NOW_MS, NOW_MS + 7, -1, 0, 2**63]))
        items.append(Record(offset, kafka_ms, value))
        offset += draw(st.sampled_from([1, 1, 3]))
    return Records.of(PART, start, max(start, offset), items)


def sets(values: st.SearchStrategy[Any]) -> st.SearchStrategy[RecordSet | Records]:
    return st.one_of(record_sets(values), record_sets(values), plain_records(values))
