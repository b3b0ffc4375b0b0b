"""Checks the keys of the test of LiteLLM's callback: what LiteLLM's database says otherwise."""

from __future__ import annotations

from fastapi import HTTPException, Request
from litellm.proxy._types import UserAPIKeyAuth

KEYS = {
    "sk-acme": {"team_id": "north", "user_id": "ann", "metadata": {"plan": "pro"}},
    "sk-shop": {"team_id": "north", "user_id": "bob"},
    "sk-till": {"team_id": "south"},
}


async def authenticate(request: Request, api_key: str) -> UserAPIKeyAuth:
    """Returns what is known of a key. Raises HTTPException for an unknown one."""
    if api_key not in KEYS:
        raise HTTPException(401, "unknown key")
    return UserAPIKeyAuth(api_key=api_key, key_alias=api_key.removeprefix("sk-"), **KEYS[api_key])
