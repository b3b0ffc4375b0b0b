"""Read-only queries for commands, health checks and metrics, each in one snapshot.

Three write: `gate_reports` what gates report about themselves, `refused_clients` what servers refused,
`audit` that a day had no difference.
"""
