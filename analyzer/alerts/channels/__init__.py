"""Channels: each sends a message in the form of one kind of receiver."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from analyzer.alerts.alert_messages import AlertMessage


class SendResult(NamedTuple):
    """The outcome of a try.

    Attributes:
        is_accepted: Whether the receiver has acknowledged the message.
        text: Its answer, or why it has none, in one line.
        status: Over HTTP; 0: none.
        is_final: Whether the receiver never takes this message, or any.
        retry_after_s: For which it asks to wait; None: it does not.
    """

    is_accepted: bool
    text: str
    status: int = 0
    is_final: bool = False
    retry_after_s: float | None = None


class Channel(Protocol):
    """Sends messages to one receiver."""

    @property
    def lists_all(self) -> bool:
        """Whether a message must have all of its events; people are shown the first ones."""

    @property
    def has_incidents(self) -> bool:
        """Whether each signal needs a separate message, because it opens an incident."""

    @property
    def shown(self) -> str:
        """The kind and the address, without secrets, for lists."""

    def send(self, message: AlertMessage, now_ms: int) -> SendResult:
        """Sends a message and waits for the answer, for some seconds. Calling it again repeats the message.

        A receiver that does not answer is a result; raises nothing that a receiver causes.
        """

    def close(self) -> None:
        """Closes connections; `send` opens them again."""
