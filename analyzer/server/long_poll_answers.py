"""The interface that a connection asks for an answer before it gives a request to the application."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class LongPollAnswers(Protocol):
    """Requests that are answered without h11 and the application; None leaves one to them."""

    def parse(self, data: bytes, client: tuple[str, int] | None, last_fields: Any) -> Any:
        """Returns the request in `data`; `last_fields` are the `fields` of the last one of its connection."""

    async def answer(self, poll: Any, default_fields: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Returns the response to what `parse` returned, as soon as there is one."""
