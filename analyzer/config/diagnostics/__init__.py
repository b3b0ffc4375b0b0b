"""What is wrong with a configuration: faults with their file, line and cure.

From pydantic's errors, unknown keys and TOML text to the messages of `gatelock check`.
"""
