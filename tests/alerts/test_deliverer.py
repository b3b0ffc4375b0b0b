"""Events become messages, each sent until it is acknowledged, or given up."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import pairwise

import pytest
import sqlalchemy as sa

from analyzer.alerts import message_rows
from analyzer.alerts.alert_messages import LISTED_MAX, AlertMessage
from analyzer.alerts.channels import SendResult
from analyzer.alerts.channels.http_channel import HttpChannel
from analyzer.alerts.channels.webhook_signatures import SignedWebhook
from analyzer.alerts.destinations import Destination, Gathering, QuietTime, Route
from analyzer.alerts.guarded_http import AlertUrl, GuardedPost
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.outbox import OutboxEvent
from analyzer.kernel.tables.outbox_tables import alert_messages, outbox
from tests.alerts.conftest import (
    ACCEPTED,
    AT_ONCE,
    REFUSED,
    Recorder,
    deliver,
    deliverer,
    lock_event,
    make_due,
    put,
)
from tests.alerts.test_guarded_http import HERE
from tests.house.reading import ROOT
from tests.support.alert_receiver import ACCEPT, REDIRECT, REFUSE, receiving

KEY = bytes(range(32))


def rows(engine: sa.Engine, *columns: str) -> list[tuple[object, ...]]:
    with reading(engine) as db:
        return [
            (*row,) for row in db.execute(sa.select(alert_messages.c[columns]).order_by(alert_messages.c.id))
        ]


def test_500_locks_are_one_message(engine: sa.Engine) -> None:
    ops = Recorder()
    put(engine, *(lock_event(number) for number in range(300)))
    sender = deliverer(engine, Destination("ops", ops))
    sender.step()
    put(engine, *(lock_event(number) for number in range(300, 500)))
    sender.step()
    assert ops.messages == [], "it gathers for half a minute"
    make_due(engine, "gathering")
    sender.step()
    [message] = ops.messages
    assert (message.number, len(message.events)) == (500, 500)
    assert message.title == "500 locks began by daily"
    assert message.lines()[-2:] == ["api_key:acct-19 is locked by daily: 100 counted", "and 480 more"]
    assert rows(engine, "state", "tries") == [("sent", 1)]
    with reading(engine) as db:
        assert db.execute(sa.select(sa.func.count()).select_from(outbox)).scalar() == 0


def test_a_message_has_one_kind_one_policy_and_one_severity(engine: sa.Engine) -> None:
    ops = Recorder()
    put(engine, lock_event(1), lock_event(2, policy="other"), lock_event(3, kind="lock.cleared"))
    put(engine, lock_event(4, severity="critical"), lock_event(5))
    deliver(engine, Destination("ops", ops, gathering=AT_ONCE))
    assert sorted(message.number for message in ops.messages) == [1, 1, 1, 2]


def test_a_program_gets_all_events_and_people_the_first_ones(engine: sa.Engine) -> None:
    people, program = Recorder(), Recorder(lists_all=True)
    put(engine, *(lock_event(number) for number in range(LISTED_MAX + 20)))
    deliver(engine, Destination("people", people), Destination("program", program))
    assert [(message.number, len(message.events)) for message in people.messages] == [(520, 500)]
    assert sorted(len(message.events) for message in program.messages) == [20, 500]


def test_without_gathering_each_event_is_a_message_in_order(engine: sa.Engine) -> None:
    ops = Recorder()
    put(engine, *(lock_event(number) for number in range(5)))
    deliver(engine, Destination("ops", ops, gathering=Gathering(0.0)))
    assert [message.first.about for message in ops.messages] == [f"api_key:acct-{n}" for n in range(5)]


def test_the_next_message_of_a_topic_waits(engine: sa.Engine) -> None:
    ops = Destination("ops", Recorder(), gathering=Gathering(1.0, 300.0))
    put(engine, lock_event(1))
    deliver(engine, ops)
    put(engine, lock_event(2))
    deliverer(engine, ops).step()
    [(_, began), (due, _)] = rows(engine, "due_ms", "begun_ms")
    assert isinstance(began, int)
    assert due == began + 300_000


def test_each_destination_gets_what_its_route_takes(engine: sa.Engine) -> None:
    takers = {
        "locks": Route(kinds=("lock.*",)),
        "critical": Route(severity="critical"),
        "one policy": Route(policies=("dai*",)),
        "acme": Route(tenants=("acme",)),
        "beginnings": Route(ends=False),
        "one caller": Route(about=("api_key:acct-2",)),
    }
    channels = {name: Recorder() for name in takers}
    put(
        engine,
        lock_event(1, tenant="acme"),
        lock_event(2, kind="lock.cleared"),
        OutboxEvent("signal.began", "lag", "it lags", "critical"),
        OutboxEvent("day.closed", "day", "closed", "info"),
    )
    destinations = [Destination(name, channels[name], route) for name, route in takers.items()]
    deliver(engine, *destinations)
    kinds = {name: sorted(m.first.kind for m in channel.messages) for name, channel in channels.items()}
    assert kinds == {
        "locks": ["lock.cleared", "lock.set"],
        "critical": ["signal.began"],
        "one policy": ["lock.cleared", "lock.set"],
        "acme": ["lock.set"],
        "beginnings": ["day.closed", "lock.set", "signal.began"],
        "one caller": ["lock.cleared"],
    }


def test_in_a_quiet_time_only_critical_messages_are_sent(engine: sa.Engine) -> None:
    always = QuietTime(0, 24 * 60 - 1)
    ops = Destination("ops", Recorder(), gathering=AT_ONCE, quiet=always)
    put(engine, lock_event(1), lock_event(2, severity="critical"))
    deliverer(engine, ops).step()
    deliverer(engine, ops).step()
    states = {severity: (state, due) for severity, state, due in rows(engine, "severity", "state", "due_ms")}
    assert states["critical"][0] == "sent"
    state, due = states["warning"]
    assert (state, int(str(due)) % 86_400_000) == ("gathering", (24 * 60 - 1) * 60_000)


def test_a_failure_is_tried_again_with_the_same_id_and_content_until_it_is_acknowledged(
    engine: sa.Engine,
) -> None:
    ops = Recorder([REFUSED, REFUSED, ACCEPTED])
    destination = Destination("ops", ops, gathering=AT_ONCE)
    put(engine, lock_event(1))
    deliver(engine, destination)
    put(engine, lock_event(2))
    for _ in range(2):
        make_due(engine)
        deliverer(engine, destination).step()
    assert len({message.id for message in ops.messages}) == 1
    assert {message.number for message in ops.messages} == {1}, "the second lock is in another message"
    assert rows(engine, "state", "tries", "status", "error")[0] == ("sent", 3, 200, "ok")


def test_tries_are_further_and_further_apart(engine: sa.Engine) -> None:
    ops = Destination("ops", Recorder([REFUSED]), gathering=AT_ONCE)
    put(engine, lock_event(1))
    deliver(engine, ops)
    waits = []
    for _ in range(5):
        make_due(engine)
        deliverer(engine, ops).step()
        with reading(engine) as db:
            now = db.execute(sa.select(message_rows.NowMs())).scalar_one()
        [(due,)] = rows(engine, "due_ms")
        waits.append(round((int(str(due)) - now) / 1000))
    assert waits[0] in (7, 8)
    assert all(later >= 1.8 * earlier for earlier, later in pairwise(waits))


def test_one_failure_has_all_messages_to_a_destination_wait_and_no_others(engine: sa.Engine) -> None:
    down, up = Recorder([REFUSED]), Recorder()
    put(engine, *(lock_event(number) for number in range(5)))
    pace = Gathering(0.0)
    sender = deliverer(
        engine, Destination("down", down, gathering=pace), Destination("up", up, gathering=pace)
    )
    while sender.step():
        pass
    assert (len(down.messages), len(up.messages)) == (1, 5)


def test_a_destination_with_many_messages_does_not_delay_the_others(engine: sa.Engine) -> None:
    busy, other = Recorder(), Recorder()
    put(engine, *(lock_event(number) for number in range(60)), lock_event(61, kind="signal.began"))
    sender = deliverer(
        engine,
        Destination("busy", busy, Route(kinds=("lock.*",)), Gathering(0.0)),
        Destination("other", other, Route(kinds=("signal.*",)), Gathering(0.0)),
    )
    sender.step()
    assert (len(busy.messages), len(other.messages)) == (message_rows.EACH_MAX, 1)
    while sender.step():
        pass
    assert [message.first.about for message in busy.messages] == [f"api_key:acct-{n}" for n in range(60)]


def test_a_slow_destination_gives_the_turn_back(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.alerts.deliverer.STEP_S", -1.0)
    slow = Recorder()
    put(engine, lock_event(1), lock_event(2))
    deliverer(engine, Destination("slow", slow, gathering=Gathering(0.0))).step()
    assert len(slow.messages) == 1


def test_a_receiver_that_asks_to_wait_is_given_the_time(engine: sa.Engine) -> None:
    ops = Recorder([replace_result(REFUSED, retry_after_s=900.0)])
    put(engine, lock_event(1))
    deliver(engine, Destination("ops", ops, gathering=AT_ONCE))
    [(due, begun)] = rows(engine, "due_ms", "begun_ms")
    assert int(str(due)) - int(str(begun)) >= 900_000


def replace_result(result: SendResult, **values: object) -> SendResult:
    return result._replace(**values)  # type: ignore[arg-type]


def test_a_message_that_is_never_acknowledged_is_dead_after_its_time_and_can_be_sent_again(
    engine: sa.Engine,
) -> None:
    ops = Recorder([REFUSED])
    destination = replace(Destination("ops", ops, gathering=AT_ONCE), give_up_s=100.0)
    put(engine, lock_event(1))
    deliver(engine, destination)
    with writing(engine) as db:
        db.execute(sa.update(alert_messages).values(begun_ms=alert_messages.c.begun_ms - 101_000))
    make_due(engine)
    deliverer(engine, destination).step()
    assert rows(engine, "state", "tries") == [("dead", 2)]
    make_due(engine)
    assert deliverer(engine, destination).step() == 0
    ops.results = [ACCEPTED]
    with writing(engine) as db:
        assert message_rows.send_again(db, message_rows.dead_ids(engine, "ops", 9)) != []
    deliverer(engine, destination).step()
    assert rows(engine, "state") == [("sent",)]
    assert len({message.id for message in ops.messages}) == 1


def test_a_message_that_a_receiver_never_takes_is_dead_at_once(engine: sa.Engine) -> None:
    ops = Recorder([SendResult(False, "410 gone", 410, is_final=True), ACCEPTED])
    put(engine, lock_event(1), lock_event(2))
    deliver(engine, Destination("ops", ops, gathering=Gathering(0.0)))
    assert sorted(rows(engine, "state")) == [("dead",), ("sent",)]


def test_a_message_that_cannot_be_made_keeps_no_other_from_being_sent(engine: sa.Engine) -> None:
    ops = Recorder()

    def fail_once(message: AlertMessage) -> None:
        if len(ops.messages) == 1:
            raise ZeroDivisionError

    ops.on_send = fail_once
    put(engine, lock_event(1), lock_event(2))
    deliver(engine, Destination("ops", ops, gathering=Gathering(0.0)))
    assert sorted(rows(engine, "state", "error")) == [
        ("dead", "internal error: ZeroDivisionError()"),
        ("sent", "ok"),
    ]


def test_a_message_to_an_unknown_destination_waits_for_an_analyzer_that_knows_it(engine: sa.Engine) -> None:
    put(engine, lock_event(1))
    deliverer(engine, Destination("ops", Recorder())).step()
    make_due(engine, "gathering")
    deliverer(engine).step()
    assert rows(engine, "state", "error") == [("gathering", "no destination of this name is configured")]
    make_due(engine, "gathering", ago_ms=86_400_000)
    with writing(engine) as db:
        db.execute(sa.update(alert_messages).values(made_ms=alert_messages.c.made_ms - 86_400_001))
    deliverer(engine).step()
    assert rows(engine, "state") == [("dead",)]


@pytest.mark.parametrize("answers", [(REFUSE, ACCEPT), (REDIRECT, ACCEPT)], ids=["500", "307"])
def test_a_receiver_that_fails_at_first_gets_the_message_twice_under_one_id(
    engine: sa.Engine, answers: tuple[object, ...]
) -> None:
    with receiving(*answers) as receiver:  # type: ignore[arg-type]
        url = AlertUrl.parse(receiver.url, [receiver.host])
        hook = HttpChannel("webhook", url, SignedWebhook([KEY]), GuardedPost(HERE), lists_all=True)
        destination = Destination("hook", hook, gathering=AT_ONCE)
        put(engine, lock_event(1))
        deliver(engine, destination)
        make_due(engine)
        deliverer(engine, destination).step()
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert rows(engine, "state", "tries") == [("sent", 2)]


def test_a_receiver_that_takes_nothing_is_a_condition(engine: sa.Engine) -> None:
    ops = Destination("ops", Recorder([REFUSED]), gathering=AT_ONCE)
    put(engine, lock_event(1))
    deliver(engine, ops, Destination("up", Recorder(), gathering=AT_ONCE))
    assert message_rows.undelivered(engine) == []
    with writing(engine) as db:
        db.execute(sa.update(alert_messages).values(begun_ms=alert_messages.c.begun_ms - 1_000_000))
    [found] = message_rows.undelivered(engine)
    assert (found.receiver, found.dead, found.error) == ("ops", 0, "503 later")
    assert found.waiting_s is not None
    assert 1_000 <= found.waiting_s < 1_100
    with writing(engine) as db:
        for (message,) in rows(engine, "id"):
            message_rows.end(db, str(message), "dead", 503, "503 later")
    assert [(one.waiting_s, one.dead) for one in message_rows.undelivered(engine)] == [(None, 1)]


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from analyzer.kernel.database.engine import open_engine
    from tests.alerts.conftest import AT_ONCE, Recorder, deliver
    from analyzer.alerts.destinations import Destination

    def kill(message):
        print(message.id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    deliver(open_engine(sys.argv[1]), Destination("ops", Recorder(on_send=kill), gathering=AT_ONCE))
    """
)


def test_a_kill_behind_the_answer_repeats_the_message_under_its_id(engine: sa.Engine) -> None:
    put(engine, lock_event(1))
    url = engine.url.render_as_string(hide_password=False)
    killed = subprocess.run([sys.executable, "-c", KILLED, url], capture_output=True, text=True, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rows(engine, "state", "tries") == [("sending", 1)]
    ops = Recorder()
    make_due(engine)
    deliverer(engine, Destination("ops", ops, gathering=AT_ONCE)).step()
    assert [message.id for message in ops.messages] == [killed.stdout.strip()]
    assert rows(engine, "state", "tries") == [("sent", 2)]
