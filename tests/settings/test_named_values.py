"""`[[groupings]]`: named values are defined, named in other tables, and counted."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.kernel.model import Partition, Record, Records
from analyzer.plan.plan import plan_from
from tests.support.counters import reference_counter

Read = Callable[[str], Settings]

SOURCE = """
[[sources]]
topic = "calls"
groupings = ["caller+model"]
[sources.fields]
api_key = "key"
llm = "model"
tokens = "tokens"
"""
MODEL = """
[[groupings]]
name = "model"
field = "llm"
"""
METER = '[[meters]]\nname = "tokens"\nsum = "tokens"\n'
POLICY = '[[policies]]\nname = "p"\nlimit = 5\nwindow = { per = "day" }\nper = "model"\n'


def faults_of(read: Read, text: str) -> list[ConfigFault]:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    return list(raised.value.faults)


@pytest.mark.parametrize(
    ("name", "problem", "cure"),
    [
        ("caller", '"caller" has another meaning in groupings', "write another name"),
        ("address6", '"address6" has another meaning', "write another name"),
        ("zone", '"zone" has another meaning', "write another name"),
        ("large-model", '"large-model" is not a valid name', "lower-case letters"),
        ("Model", '"Model" is not a valid name', "lower-case letters"),
        ("m" * 33, "is not a valid name", "up to 32"),
    ],
)
def test_a_name_that_a_gate_cannot_be_asked_by_is_a_fault(
    read: Read, name: str, problem: str, cure: str
) -> None:
    text = SOURCE.replace('groupings = ["caller+model"]', "") + MODEL.replace("model", name)
    [fault] = faults_of(read, text)
    assert problem in fault.what
    assert cure in fault.cure


@pytest.mark.parametrize(
    ("field", "problem", "cure"),
    [
        ("tokens", '"tokens" is not text', "name a text field"),
        ("resource", '"resource" is not text', "name a text field"),
        ("time", '"time" is not text', "name a text field"),
        ("lm", 'no field is named "lm"', 'did you mean "llm"?'),
        ("secret", "is counted by its digest", "remove its digest"),
    ],
)
def test_a_field_that_is_not_a_mapped_text_is_a_fault(
    read: Read, field: str, problem: str, cure: str
) -> None:
    secret = '\n[analyzer]\ndigest_secret = "0123456789abcdef"\n' if field == "secret" else ""
    source = SOURCE + 'secret = { path = "s", digest = "sha256" }\n' * bool(secret)
    text = source.replace('groupings = ["caller+model"]', "") + METER + MODEL.replace("llm", field) + secret
    [fault] = faults_of(read, text)
    assert problem in fault.what
    assert cure in fault.cure


def test_two_definitions_of_one_name_are_a_fault(read: Read) -> None:
    [fault] = faults_of(read, SOURCE + MODEL + MODEL)
    assert fault.what == '"model" is already used by another [[groupings]] table'


@pytest.mark.parametrize(
    ("text", "where", "cure"),
    [
        (SOURCE.replace("+model", "+modle") + MODEL, "groupings[0]", 'did you mean "caller+model"?'),
        (SOURCE + MODEL + POLICY.replace('"model"', '"modell"'), "per", 'did you mean "model"?'),
        (SOURCE + MODEL + '[billing]\ngroupings = ["caller", "team"]\n', "groupings[1]", "or define it in"),
        (SOURCE + MODEL + '[billing]\ngroupings = ["model+team"]\n', "groupings[0]", "or define it in"),
    ],
)
def test_a_grouping_that_is_not_defined_is_a_fault_where_it_stands(
    read: Read, text: str, where: str, cure: str
) -> None:
    [fault] = faults_of(read, text)
    assert fault.where.endswith(where)
    assert "is not a grouping" in fault.what
    assert cure in fault.cure


def test_every_source_maps_the_field_of_a_policy(read: Read) -> None:
    other = '[[sources]]\ntopic = "other"\n[sources.fields]\napi_key = "key"\n'
    [fault] = faults_of(read, SOURCE + other + MODEL + POLICY)
    assert fault.what == '"model" needs the field llm in [[sources]] "other"'
    read(SOURCE + other + MODEL)


@pytest.mark.parametrize(
    ("per", "problem", "cure"),
    [
        ("caller+tenant", "counted for reports alone", 'per = "caller", or per = "tenant"'),
        ("model+region", "counted for reports alone", 'per = "model", or per = "region"'),
        ("tenant+plan", "no gate knows the plan of a request", 'per = "caller"'),
    ],
)
def test_two_parts_that_no_gate_is_asked_by_cannot_be_limited(
    read: Read, per: str, problem: str, cure: str
) -> None:
    [fault] = faults_of(read, SOURCE + MODEL + POLICY.replace('per = "model"', f'per = "{per}"'))
    assert problem in fault.what
    assert cure in fault.cure


def test_a_share_of_a_named_value_is_a_fault(read: Read) -> None:
    share = '[[policies]]\nname = "s"\nkind = "share"\nlimit = 0.4\nof = "everyone"\nfloor = "30/s"\n'
    [fault] = faults_of(read, SOURCE + MODEL + share + 'window = { rolling = "5m" }\nper = "caller+model"\n')
    assert fault.what == '"caller+model" has no share of the load of a resource'


def test_the_plan_has_the_definitions_that_are_used(read: Read) -> None:
    unused = '[[groupings]]\nname = "team"\nfield = "llm"\n'
    without = SOURCE.replace('groupings = ["caller+model"]', "")
    assert read(without + MODEL + unused).plan().digest == read(without).plan().digest
    plan = read(SOURCE + MODEL + unused + POLICY).plan()
    assert plan.named_values == {"model": "llm"}
    assert plan.groupings == ("caller", "caller+model", "model")
    assert plan_from(plan.to_json()) == plan
    renamed = read(SOURCE + MODEL.replace('"llm"', '"api_key"') + POLICY).plan()
    assert (renamed.parts["rules"] == plan.parts["rules"], renamed.digest == plan.digest) == (False, False)


def test_values_are_counted_by_their_field_and_bounded_as_callers_are(read: Read) -> None:
    text = SOURCE.replace("topic", "callers_per_hour = 2\ntopic")
    plan = read(text + MODEL + POLICY).plan()
    counter = reference_counter(plan.sources, plan.groupings, plan.meters, named_values=plan.named_values)
    models: list[object] = ["large", "small", "huge", 7, "x" * 300, None, "large"]
    values = [json.dumps({"key": "a", "model": model}).encode() for model in models]
    records = [Record(offset, 1_000_000, value) for offset, value in enumerate(values)]
    counter.feed(Records.of(Partition("c", "t", 0, "calls", "calls"), 0, len(records), records))
    rows = counter.drain().rows
    of_models = {row.key: row.value for row in rows if row.grouping == "model"}
    assert of_models == {"large": 2, "small": 1, "overflow:": 2, "": 2}
    of_callers = {(row.key, row.resource): row.value for row in rows if row.grouping == "caller+model"}
    assert of_callers == {("api_key:a", name): value for name, value in of_models.items()}
