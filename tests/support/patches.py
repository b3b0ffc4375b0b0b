"""Replaced constants, for scripts in child processes, where pytest's monkeypatch does not reach."""

from __future__ import annotations

from types import ModuleType


def replace(module: ModuleType, **values: object) -> None:
    """Replaces attributes of `module`. Raises AttributeError for one that it does not have."""
    for name, value in values.items():
        getattr(module, name)
        setattr(module, name, value)
