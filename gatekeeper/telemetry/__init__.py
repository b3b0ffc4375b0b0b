"""The status that a gate reports, how often each lock applied and a sample of its callers, and its metrics.

No decision depends on it.
"""
