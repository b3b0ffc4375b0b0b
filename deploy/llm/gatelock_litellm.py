"""LiteLLM 1.110: writes the request log that litellm.toml describes, and refuses keys and teams with a lock.

Put this file beside LiteLLM's config.yaml, and `pip install gatelock` into its environment. In config.yaml:

    litellm_settings:
      callbacks: ["gatelock_litellm.callback"]

Environment:

    GATELOCK_LOG         the file of the log; default: requests.log
    GATELOCK_GATE        the source of the locks, such as http://127.0.0.1:8321; default: none, so that calls
                         are logged and none is refused
    GATELOCK_TOKEN_FILE  a file with the token for it

The log has neither prompts nor answers, and of keys the hash under which LiteLLM stores them.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

from gatekeeper import Gate
from gatekeeper.adapters.caller_extraction import caller_name
from gatekeeper.adapters.refusal_response import VERDICT, refusal
from gatekeeper.requestlog.file import FileSink
from gatekeeper.requestlog.log_record import LogLine

log = logging.getLogger("gatelock.litellm")

# What is kept of a StandardLoggingPayload.
FIELDS = (
    *("id", "litellm_call_id", "call_type", "stream", "status", "cache_hit", "startTime", "endTime"),
    *("model", "model_group", "custom_llm_provider", "end_user", "requester_ip_address"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "response_cost"),
)
METADATA = (
    *("user_api_key_hash", "user_api_key_alias", "user_api_key_team_id", "user_api_key_user_id"),
    *("user_api_key_org_id", "user_api_key_auth_metadata", "user_api_key_request_route", "usage_object"),
)
ERROR = ("error_code", "error_class")
WAITING_MAX = 10_000  # lines that wait while the file cannot be written


class Gatelock(CustomLogger):
    """Logs each call, and asks the gate before one.

    Args:
        path: The file of the log. Several processes may append to it.
        gate: The gate, which polls in a thread; None: no call is refused.
    """

    def __init__(self, path: Path, gate: Gate | None) -> None:
        super().__init__()
        self._sink = FileSink(path)
        self._waiting: list[LogLine] = []
        self._gate = gate

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: Any, call_type: Any
    ) -> None:
        """Raises HTTPException for a call whose key, team or model has a lock. The key is checked already."""
        if self._gate is None:
            return
        await self._gate.startup.wait_async()  # of a new process, half a second at most
        decision = self._gate.check(
            caller_name("api_key", user_api_key_dict.api_key or ""),
            tenant=user_api_key_dict.team_id or "",
            resource=str(data.get("model") or ""),
        )
        if not decision.allowed:
            response = refusal(decision, "draft")
            headers = {name: value for name, value in response.headers if not name.startswith("content-")}
            raise HTTPException(response.status, {"error": decision.detail or "refused"}, headers)

    async def async_log_success_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Logs a call at the end of its answer, or of its stream."""
        self._write(record(kwargs["standard_logging_object"]))

    async def async_log_failure_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Logs a call that failed, or that the gate denied."""
        error = kwargs.get("exception")
        verdict = (error.headers or {}).get(VERDICT) if isinstance(error, HTTPException) else None
        self._write(record(kwargs["standard_logging_object"]) | {"gate": verdict})

    def _write(self, fields: dict[str, Any]) -> None:
        """Appends a line. Lines that cannot be written wait for the next call, WAITING_MAX at most."""
        self._waiting.append(LogLine(json.dumps(fields).encode() + b"\n", ""))
        outcome = self._sink.write(self._waiting)
        del self._waiting[: outcome.taken]
        if outcome.trouble:
            log.warning("%d calls are not logged yet: %s", len(self._waiting), outcome.trouble)
        del self._waiting[:-WAITING_MAX]


def record(payload: dict[str, Any]) -> dict[str, Any]:
    """Returns what is logged of a call: a part of LiteLLM's StandardLoggingPayload, under its names."""
    fields = {name: payload.get(name) for name in FIELDS}
    for name, kept in (("metadata", METADATA), ("error_information", ERROR)):
        whole = payload.get(name) or {}
        fields[name] = {key: whole.get(key) for key in kept}
    return fields


def gate_of_environment() -> Gate | None:
    """Returns the gate that the environment names; None if it names none."""
    source, token = os.environ.get("GATELOCK_GATE"), os.environ.get("GATELOCK_TOKEN_FILE")
    return Gate(source, token=Path(token) if token else None, name="litellm") if source else None


callback = Gatelock(Path(os.environ.get("GATELOCK_LOG", "requests.log")), gate_of_environment())
