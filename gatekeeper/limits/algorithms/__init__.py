"""The limiters, one module each: a pure rule on a key's state, and the class that users see.

What all limiters have in common is in `gatekeeper.limits.engine`.
"""
