"""`/v1/policies/check` and `/v1/policies/simulate`: policies of a text, which is not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings, load
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.tokens import create
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.store.flushing import a_row, flush, now_s
from tests.support.plain_http import request

MONTH = Calendar("month")
PLAN = make_plan([], [], [Quota("monthly", 50, MONTH)])
STATED = '[[policies]]\nname = "monthly"\nlimit = {limit}\nwindow = {{ per = "month" }}\n'
Ask = Callable[..., Any]


@pytest.fixture
def ask(engine: sa.Engine, settings: Settings) -> Iterator[Ask]:
    store = SqlStore(engine, "here")
    store.activate(PLAN)
    at_s = now_s(engine)
    flush(store, PLAN, [a_row(60, at_s, "api_key:acme"), a_row(25, at_s, "api_key:bob")])
    tokens = {scope: create(engine, scope, scope, None, "ann", "tests") for scope in ("view", "read")}
    with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict) as address:
        assert address is not None

        def ask(path: str, scope: str = "view", **body: Any) -> Any:
            url = f"http://127.0.0.1:{address[1]}/v1/policies/{path}"
            return request("POST", url, json=body, headers={"authorization": f"Bearer {tokens[scope]}"})

        yield ask


def test_faults_have_their_line_and_the_cure(ask: Ask) -> None:
    answer = ask("check", policies=STATED.format(limit="50") + 'wndow = "x"\n')
    assert answer.status_code == 200, answer.text
    (fault,) = answer.json()["faults"]
    assert (fault["line"], fault["file"]) == (5, "the text")
    assert "window" in fault["cure"]
    assert ask("check", policies="[[policies]\n").json()["faults"][0]["what"].startswith("is not valid TOML")


def test_policies_without_faults_are_described_and_nothing_is_changed(ask: Ask, engine: sa.Engine) -> None:
    answer = ask("check", policies=STATED.format(limit="20")).json()
    assert answer["faults"] == []
    (policy,) = answer["policies"]
    assert (policy["name"], policy["mode"]) == ("monthly", "enforce")
    assert "at most 20 requests" in policy["what"]
    assert {entry.act for entry in entries(engine)}.isdisjoint({"policies check", "plan in force"})


def test_a_text_names_no_file_and_no_address(ask: Ask) -> None:
    for table in ('[database]\nurl_file = "/etc/shadow"', '[analyzer]\ndigest_secret_file = "/etc/shadow"',
                  '[[overrides]]\nfile = "/etc/passwd"', '[[sources]]\nfile = "/etc/passwd"'):  # fmt: skip
        answer = ask("check", policies=table).json()
        assert "cannot be stated here" in answer["faults"][0]["what"]
        assert "root" not in str(answer)


def test_a_simulation_says_whom_another_limit_would_lock(ask: Ask) -> None:
    (report,) = ask("simulate", policies=STATED.format(limit="20")).json()["policies"]
    assert report["simulated"]["callers"] == 2
    assert report["present"]["callers"] == 1
    (report,) = ask("simulate", policy="monthly", limit="70").json()["policies"]
    assert (report["limit"], report["simulated"]["callers"]) == (70, 0)


@pytest.mark.parametrize("database", ["sqlite"])
def test_an_impossible_simulation_is_refused_in_a_sentence(ask: Ask) -> None:
    for body, sentence in (
        ({"policy": "monthli", "limit": "5"}, "did you mean"),
        ({"limit": "5"}, "needs `policy`"),
        ({"policies": STATED.format(limit="many")}, "limit"),
        ({"policies": "[[meters]]\n"}, "name"),
    ):
        answer = ask("simulate", **body)
        assert (answer.status_code, sentence in answer.json()["detail"]) == (422, True), answer.text
    assert ask("simulate", scope="read", policy="monthly").status_code == 403


def test_a_file_keeps_its_document_for_texts_that_complete_it(tmp_path: Any) -> None:
    file = tmp_path / "gatelock.toml"
    file.write_text('[[meters]]\nname = "errors"\ncount = true\n')
    assert load(file).document == {"meters": [{"name": "errors", "count": True}]}
