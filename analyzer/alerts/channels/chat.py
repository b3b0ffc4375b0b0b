"""Messages for Slack and Microsoft Teams, in parts that have no markup: names are shown as they are."""

from __future__ import annotations

import json

from analyzer.alerts.alert_messages import AlertMessage
from analyzer.alerts.channels.http_channel import HttpBody
from analyzer.alerts.channels.plain_texts import plain

TITLE_MAX = 140  # characters; Slack takes 150
LINE_MAX = 280
TEXT_MAX = 2_900  # Slack takes 3,000
MARKS = {"critical": "[critical] ", "warning": "", "info": ""}
JSON_HEADERS = {"content-type": "application/json; charset=utf-8"}


def slack_body(message: AlertMessage, now_ms: int) -> HttpBody:
    """Returns a message for an incoming webhook of Slack: `plain_text` alone, which has no mentions.

    The text above the blocks, for notifications, is read as markup: what begins markup is escaped there.
    """
    title, lines = _title(message), "\n".join(_lines(message))[:TEXT_MAX]
    blocks = [_slack_block("header", title)]
    if lines:
        blocks.append(_slack_block("section", lines))
    fallback = _slack_escaped(title)
    return HttpBody(json.dumps({"text": fallback, "blocks": blocks}).encode(), JSON_HEADERS)


def teams_body(message: AlertMessage, now_ms: int) -> HttpBody:
    """Returns an Adaptive Card for a workflow of Teams: runs of text, in which no Markdown is read."""
    parts = [_run(_title(message), weight="Bolder", size="Medium"), *map(_run, _lines(message))]
    body = [{"type": "RichTextBlock", "inlines": [part]} for part in parts]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if message.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": message.link}]
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return HttpBody(json.dumps({"type": "message", "attachments": [attachment]}).encode(), JSON_HEADERS)


def _title(message: AlertMessage) -> str:
    return plain(MARKS[message.first.severity] + message.title, TITLE_MAX)


def _lines(message: AlertMessage) -> list[str]:
    return [plain(line, LINE_MAX) for line in message.lines()]


def _slack_block(kind: str, text: str) -> dict[str, object]:
    return {"type": kind, "text": {"type": "plain_text", "text": text, "emoji": False}}


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _run(text: str, **style: str) -> dict[str, object]:
    # Functions such as {{DATE(...)}} are read in any text of a card.
    return {"type": "TextRun", "text": text.replace("{{", "{ {"), **style}
