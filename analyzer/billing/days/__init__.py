"""Closing days: how far each partition must be counted, the cut, the frozen rows; corrections afterwards."""
