"""The tables of the TOML file as pydantic models, one module per table.

What a table must agree on with the others is in `analyzer.config.checks`.
"""
