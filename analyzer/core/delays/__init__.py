"""How late locks are: the delays of records as they are counted, the parts of a lock's delay, its bound.

The counter measures into this package; nothing in here knows callers, policies or locks.
"""
