"""Simulation of policies on stored counts: by the functions that judge live.

`bucket_scan` reads the buckets, `policy_simulation` plays them, `comparison` says what differs between two
policies. The rest is pure.
"""
