"""Messages as CloudEvents 1.0, over HTTP and as records of a Kafka topic, in binary or structured mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from analyzer.alerts.alert_messages import AlertMessage, time_text
from analyzer.alerts.channels import SendResult
from analyzer.alerts.channels.http_channel import HttpBody
from analyzer.kernel.errors import TopicNotWritten

if TYPE_CHECKING:
    from analyzer.sources.kafka.topic_writer import TopicWriter

ContentMode = Literal["binary", "structured"]
STRUCTURED = "application/cloudevents+json; charset=UTF-8"
# Percent-encoded in headers over HTTP: space, quotation mark, percent, and what is not printable ASCII.
PLAIN_IN_HEADERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def attributes(message: AlertMessage, source: str) -> dict[str, str]:
    """Returns the attributes of a message; its data is that of a webhook."""
    first = message.first
    subject = first.about if message.number == 1 else first.policy
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": f"gatelock.{first.kind}",
        "time": time_text(message.made_ms),
        **({"subject": subject} if subject else {}),
        "severity": first.severity,
    }


def structured(message: AlertMessage, source: str) -> bytes:
    """Returns a message as one JSON document."""
    event: dict[str, Any] = {**attributes(message, source), "datacontenttype": "application/json"}
    return json.dumps(event | {"data": message.fields()}, ensure_ascii=False).encode()


def data(message: AlertMessage) -> bytes:
    """Returns the data of a message."""
    return json.dumps(message.fields(), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class CloudEventRequests:
    """Makes requests.

    Attributes:
        source: Names the installation.
        mode: Whether the attributes stand in headers.
        token: Sent as a bearer token; "": none.
    """

    source: str
    mode: ContentMode = "structured"
    token: str = field(default="", repr=False)

    def __call__(self, message: AlertMessage, now_ms: int) -> HttpBody:
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        if self.mode == "structured":
            return HttpBody(structured(message, self.source), headers | {"content-type": STRUCTURED})
        named = {
            f"ce-{name}": quote(value, safe=PLAIN_IN_HEADERS)
            for name, value in attributes(message, self.source).items()
        }
        return HttpBody(data(message), headers | named | {"content-type": "application/json"})


class KafkaChannel:
    """Messages as records of a topic, by the CloudEvents Kafka binding. Threads must not share it.

    Args:
        topic: Its name.
        source: Names the installation.
        mode: Whether the attributes stand in headers.
        options: Of kafka-python's clients.
    """

    lists_all = True
    has_incidents = False

    def __init__(self, topic: str, source: str, mode: ContentMode, options: Mapping[str, Any]) -> None:
        self._topic = topic
        self._source = source
        self._mode = mode
        self._options = options
        self._writer: TopicWriter | None = None

    @property
    def shown(self) -> str:
        return f"kafka {self._topic}"

    def send(self, message: AlertMessage, now_ms: int) -> SendResult:
        """See `Channel.send`."""
        # kafka-python takes a tenth of a second to import, which other channels need not wait for.
        from analyzer.sources.kafka.topic_writer import TopicWriter

        headers, value = [("content-type", STRUCTURED.encode())], structured(message, self._source)
        if self._mode == "binary":
            named = attributes(message, self._source).items()
            headers = [(f"ce_{name}", text.encode()) for name, text in named]
            headers.append(("content-type", b"application/json"))
            value = data(message)
        key = (message.first.about or message.first.kind).encode()
        self._writer = self._writer or TopicWriter(self._topic, self._options)
        try:
            return SendResult(True, self._writer.write(key, value, headers))
        except TopicNotWritten as error:
            return SendResult(False, str(error)[:200])

    def close(self) -> None:
        """Closes the connections to the brokers."""
        if self._writer is not None:
            self._writer.close()
