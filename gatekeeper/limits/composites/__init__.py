"""Limiters composed of limiters: several at once, one per plan, many shards, a share per node, from text.

What a single limit decides is in `gatekeeper.limits.algorithms`.
"""
