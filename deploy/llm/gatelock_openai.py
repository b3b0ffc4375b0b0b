"""The OpenAI SDK for Python (3.57): writes the request log that openai-sdk-log.toml describes.

For an application that serves its callers by calls of a model. Log each answer under the caller that your
guard checked:

    log = UsageLog("requests.log")
    answer = client.chat.completions.create(model="gpt-4o", messages=messages)
    log.write(answer, api_key="acme", team="north", cost=price(answer))

Of a stream, log the part that has the usage: the last chunk of chat completions with
`stream_options={"include_usage": True}`, `event.response` of the event `response.completed`.
"""

from __future__ import annotations

import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

from gatekeeper.requestlog.file import FileSink
from gatekeeper.requestlog.log_record import LogLine

# Where the answers of each API have their tokens: chat completions and embeddings, and responses.
PATHS = {
    "input": ("prompt_tokens", "input_tokens"),
    "output": ("completion_tokens", "output_tokens"),
    "total": ("total_tokens",),
    "cached": ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens"),
    "reasoning": (
        "completion_tokens_details.reasoning_tokens",
        "output_tokens_details.reasoning_tokens",
    ),
}


class UsageLog:
    """A request log with the tokens of each answer, in a file that any number of processes may append to.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self._sink = FileSink(path)

    def write(
        self,
        answer: Any,
        *,
        api_key: str = "",
        team: str = "",
        user: str = "",
        cost: Decimal | None = None,
        gate: str = "",
    ) -> None:
        """Appends a line. Raises OSError if it cannot be written.

        Args:
            answer: A ChatCompletion, its last chunk, or a Response of the SDK; None for a call that failed or
                was denied.
            api_key: The caller's key, as your guard names it.
            team: The caller's team.
            user: The caller's user.
            cost: What the answer costs. OpenAI does not say: multiply its tokens by your prices.
            gate: The header `Gatelock` of a denial.
        """
        fields = {"ts": time.time_ns() // 1_000, "api_key": api_key, "team": team, "user": user}
        fields |= {"model": getattr(answer, "model", None), "usage": usage(answer), "gate": gate}
        fields["cost"] = None if cost is None else f"{cost:f}"
        outcome = self._sink.write([LogLine(json.dumps(fields).encode() + b"\n", api_key)])
        if outcome.trouble:
            raise OSError(outcome.trouble)


def usage(answer: Any) -> dict[str, int]:
    """Returns the tokens of an answer, under one name in both APIs; empty if it has none.

    >>> from types import SimpleNamespace as Answer
    >>> usage(Answer(usage=Answer(prompt_tokens=5, total_tokens=5)))  # of embeddings
    {'input': 5, 'output': 0, 'total': 5, 'cached': 0, 'reasoning': 0}
    >>> usage(None)
    {}
    """
    stated = getattr(answer, "usage", None)
    if stated is None:
        return {}
    return {name: max(tokens_at(stated, path) for path in paths) for name, paths in PATHS.items()}


def tokens_at(value: Any, path: str) -> int:
    """Returns the number at a path of attributes; 0 where one is missing or None."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value or 0
