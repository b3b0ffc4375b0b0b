"""Faults of a configuration, with file, line and cure.

Translates pydantic's errors, unknown keys and positions in the TOML text to the messages of `gatelock check`.
"""
