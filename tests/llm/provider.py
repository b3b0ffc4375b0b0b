"""A provider of language models, as far as LiteLLM and the OpenAI SDK ask one: each prompt states the tokens.

Of the prompt "1200 1000 300 128" the answer has 1,200 input tokens, 1,000 of them cached, and 300 output
tokens, 128 of them for reasoning. "fail" is an error 503. Embeddings have the prompt's length in tokens.

Run it by `uvicorn --app-dir tests/llm provider:app`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse

app = FastAPI()
numbers = count(1)


def counts(prompt: Any) -> list[int]:
    """Returns input, cached, output and reasoning tokens of a prompt, or of the last one of several."""
    while not isinstance(prompt, str):
        prompt = prompt[-1]["content"] if "content" in prompt[-1] else prompt[-1]["text"]
    return [int(word) for word in prompt.split()]


def failure() -> JSONResponse:
    return JSONResponse({"error": {"message": "overloaded", "type": "server_error", "code": None}}, 503)


@app.post("/v1/chat/completions", response_model=None)
def chat(body: dict[str, Any]) -> Response | dict[str, Any]:
    prompt = body["messages"][-1]["content"]
    if prompt == "fail":
        return failure()
    read, cached, written, reasoning = counts(prompt)
    usage = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }
    begin = {"id": f"chatcmpl-{next(numbers)}", "created": int(time.time()), "model": body["model"]}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return begin | {"object": "chat.completion", "choices": [choice], "usage": usage}
    begin["object"] = "chat.completion.chunk"

    def stream() -> Iterator[str]:
        for delta, reason in (({"role": "assistant", "content": "hello"}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            yield f"data: {json.dumps(begin | {'choices': [choice]})}\n\n"
        if (body.get("stream_options") or {}).get("include_usage"):
            yield f"data: {json.dumps(begin | {'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.post("/v1/responses", response_model=None)
def responses(body: dict[str, Any]) -> Response | dict[str, Any]:
    read, cached, written, reasoning = counts(body["input"])
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": read + written,
    }
    text = {"type": "output_text", "text": "hello", "annotations": []}
    message = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [text],
    }
    answer = {"id": f"resp_{next(numbers)}", "object": "response", "created_at": int(time.time())}
    answer |= {"status": "completed", "model": body["model"], "output": [message], "usage": usage}
    answer |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "metadata": {}}
    if not body.get("stream"):
        return answer
    event = {"type": "response.completed", "sequence_number": 1, "response": answer}
    stream = [f"event: response.completed\ndata: {json.dumps(event)}\n\n"]
    return StreamingResponse(iter(stream), media_type="text/event-stream")


@app.post("/v1/embeddings")
def embeddings(body: dict[str, Any]) -> dict[str, Any]:
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    tokens = sum(map(len, texts))
    data = [{"object": "embedding", "index": index, "embedding": [0.1]} for index in range(len(texts))]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}
