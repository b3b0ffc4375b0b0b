"""Limiters made of limiters: all of several, one per plan, many shards, a share per node."""
