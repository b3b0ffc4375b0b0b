"""Machinery that all limiters share: state per key, decisions, reservations, waiting, persistence.

`rate_limiter` is the base class of all limits on a rate and the place to start; `protocol` says what an
algorithm and a store provide. No algorithm is in here: see `gatekeeper.limits.algorithms`.
"""
