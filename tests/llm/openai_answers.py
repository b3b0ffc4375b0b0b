"""Logs answers of the real OpenAI SDK by deploy/llm/gatelock_openai.py, in LiteLLM's environment.

Arguments: the address of the provider, the file of the log.
"""

from __future__ import annotations

import sys
from decimal import Decimal

from gatelock_openai import UsageLog  # on PYTHONPATH
from openai import APIStatusError, OpenAI

PRICES = Decimal("0.0000025"), Decimal("0.00000125"), Decimal("0.00001")  # per token: read, cached, written

client = OpenAI(api_key="none", base_url=sys.argv[1], max_retries=0)
log = UsageLog(sys.argv[2])


def price(read: int, cached: int, written: int) -> Decimal:
    return (read - cached) * PRICES[0] + cached * PRICES[1] + written * PRICES[2]


answer = client.chat.completions.create(
    model="gpt-4o", messages=[{"role": "user", "content": "1200 1000 300 128"}]
)
log.write(answer, api_key="acme", team="north", user="ann", cost=price(1200, 1000, 300))

chunks = client.chat.completions.create(
    model="gpt-4o",
    messages=[{"role": "user", "content": "10 0 20 0"}],
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in chunks:
    if chunk.usage is not None:
        log.write(chunk, api_key="acme", team="north", user="ann", cost=price(10, 0, 20))

answer = client.responses.create(model="gpt-4o", input="36 16 87 64")
log.write(answer, api_key="shop", team="north", cost=price(36, 16, 87))

for event in client.responses.create(model="gpt-4o", input="5 0 6 0", stream=True):
    if event.type == "response.completed":
        log.write(event.response, api_key="shop", team="south", cost=price(5, 0, 6))

answer = client.embeddings.create(model="text-embedding-3-small", input="hello")
log.write(answer, api_key="shop", team="south", cost=5 * Decimal("0.00000002"))

try:
    client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "fail"}])
except APIStatusError:
    log.write(None, api_key="acme", team="north", user="ann")
log.write(None, api_key="acme", team="north", user="ann", gate='denied;policy="tokens-per-day"')
