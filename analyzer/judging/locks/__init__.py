"""Locks in force: their feed and its news, locks by hand, the switch that opens all, and past locks.

`lock_history` and `verdict_decisions` decide which denials of a log are believed.
"""
