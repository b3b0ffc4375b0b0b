"""Reports of gates: their health, locks that met no request, and clients that were refused.

`gate_health`, `fleet_summary`, `refused_requests` and `unknown_callers` are pure. Counting and judging do not
depend on anything in here.
"""
