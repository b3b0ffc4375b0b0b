"""HTTP side of the analyzer: health, metrics, the lock feed, and the reports of gates.

Nothing in here changes a count or a lock. `wiring` puts the application together from its endpoints; `server`
runs it under uvicorn in a thread, within the bounds of `connection_limits`.
"""
