"""Delays of locks: the bound, its parts, and the alarms when it is exceeded.

`delay_bound` and `delay_parts` are pure. What counting measures is in `counting.measured_delays`.
"""
