"""The page of alerts: destinations, and the messages that were sent, wait, or were given up."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.acting.act import ActContext, ListRow
from analyzer.alerts.alert_acts import list_destinations, message_fields
from analyzer.alerts.message_rows import StoredMessage, count_messages, stored_messages
from analyzer.faces.api.pages import PagePlace
from analyzer.faces.pages.page_content import (
    ActForm,
    Chip,
    Column,
    Content,
    Input,
    Mood,
    PageTable,
    RowOrder,
    Tile,
)
from analyzer.faces.pages.page_request import PageRequest, PlacedFields, listed
from analyzer.kernel.by import By
from analyzer.kernel.logs import printable
from analyzer.kernel.sentences import plural

PATH = "/alerts"
LIKE: PagePlace = (0, "")
LATE_S = 60.0  # for which a message waits before the tile says so
MOODS: dict[str, Mood] = {"sent": "good", "waiting": "watch", "dead": "bad"}
DESTINATIONS = (
    Column("name", "Destination", rank=1), Column("to", "Sent to"), Column("for", "For"),
    Column("waiting", "Waiting", "count"), Column("sent", "Sent", "count"), Column("dead", "Dead", "count"),
    Column("error", "Last error", "prose"),
)  # fmt: skip
MESSAGES = (
    Column("made", "Time", "time"), Column("to", "To"), Column("state", "State", "state"),
    Column("severity", "Severity", "state"), Column("title", "Message", "prose", 1),
    Column("events", "Events", "count"), Column("tries", "Tries", "count", 0),
    Column("answer", "Answer", "prose", 3), Column("next", "Next try", "time", 0), Column("id", "Id", rank=0),
)  # fmt: skip


def alerts(request: PageRequest) -> Content:
    """Returns destinations with their messages, and the newest messages. Raises HttpProblem."""
    context = ActContext(request.engine, request.context.settings, By("", ""), lambda name: name)
    destinations = [row.fields for row in list_destinations(context) if isinstance(row, ListRow)]
    counts = count_messages(request.engine)
    waiting, sent, dead = (counts.by_state[state] for state in ("waiting", "sent", "dead"))
    is_late = counts.oldest_s > LATE_S
    tiles = [
        Tile("waiting", f"{waiting:,}", f"the oldest for {counts.oldest_s:,.0f} s" if waiting else "",
             "watch" if is_late else "plain"),
        Tile("sent", f"{sent:,}", "of those that are kept"),
        Tile("dead", f"{dead:,}", "had no answer in time" if dead else "", "bad" if dead else "plain"),
        Tile("to route", f"{counts.outbox:,}", plural(len(destinations), "destination")),
    ]  # fmt: skip

    def behind(place: PagePlace | None) -> Iterator[PlacedFields]:
        start = None if place is None else (-int(place[0]), str(place[1]))
        for message in stored_messages(request.engine, behind=start):
            yield (-message.made_ms, message.id), _row(message)

    rows = listed(request, PATH, behind, LIKE)
    names = [str(fields["name"]) for fields in destinations]
    return Content(
        "Alerts",
        tiles=tiles,
        forms=_forms(names, dead) if request.visitor.may_act("operate") else (),
        blocks=[
            PageTable("destinations", "Destinations", DESTINATIONS, destinations,
                      "No destination is configured: write [[alerts]] into the configuration."),
            PageTable("messages", "Messages", MESSAGES, **rows._asdict(), empty="No message was made.",
                      total=sum(counts.by_state.values()),
                      order=RowOrder("made", "The latest first: the order that has an index.")),
        ],
    )  # fmt: skip


def _forms(names: list[str], dead: int) -> list[ActForm]:
    test = ActForm("Send a test", "/v1/alerts/test", {}, [Input("to", "Destination", choices=names)], "Send")
    again = ActForm("Send dead messages again", "/v1/alerts/resend", {"dead": "true"}, [], "Send again")
    return [*([test] if names else []), *([again] if dead else [])]


def _row(message: StoredMessage) -> dict[str, object]:
    fields = message_fields(message)
    state = str(fields["state"])
    texts = {name: printable(str(fields[name])) for name in ("title", "answer")}
    return fields | texts | {"state": Chip(state, MOODS[state])}
