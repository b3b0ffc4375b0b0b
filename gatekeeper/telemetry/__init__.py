"""What a gate reports about itself: how often each lock applied, and a sample of its callers.

No decision depends on it.
"""
