"""Algorithms, one module each: a rule (pure functions on one key's state) and the limiter that applies it.

`gcra` is the rule of both buckets. Methods that all limiters share are in `gatekeeper.limits.engine`;
limiters composed of others in `gatekeeper.limits.composites`.
"""
