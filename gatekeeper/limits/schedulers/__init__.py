"""Schedulers: admit or run jobs in an order, by priority or by key.

They decide when a job may go, not whether: limiters that refuse are in `gatekeeper.limits.algorithms`.
"""
