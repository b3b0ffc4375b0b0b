"""Replays: shadow generations of counts, their comparison with the live one, and the swap."""
