"""The tables of the TOML file as pydantic models, one module for each.

Each model checks its own keys. Agreement between tables is checked in `analyzer.config.checks`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigTable(BaseModel):
    """Base of all tables: unknown keys are faults, and values do not change after they were read."""

    # Each is built when it is used first: a command needs few of them.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
