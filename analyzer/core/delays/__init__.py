"""Delays: of records as they are counted, of locks by their parts, and the bound that follows.

The counter measures into this package; nothing in here knows callers, policies or locks.
"""
