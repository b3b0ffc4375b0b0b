"""Read-only queries for commands, health checks and metrics, each in one snapshot.

Nothing here writes, except `gate_reports`, which stores what gates report about themselves.
"""
