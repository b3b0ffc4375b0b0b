"""The tables of the TOML file as pydantic models, one module per table.

What a table must agree on with the others is in `analyzer.config.checks`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigTable(BaseModel):
    """One table of the file: no key is ignored, nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
