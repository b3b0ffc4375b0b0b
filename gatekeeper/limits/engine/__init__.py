"""What all limiters share: state per key, decisions, reservations, waiting, and the convenience methods.

No algorithm is in here: see `gatekeeper.limits.algorithms`.
"""
