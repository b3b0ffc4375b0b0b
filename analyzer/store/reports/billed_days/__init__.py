"""Reads closed days: their state, their rows, and what was booked on them since."""
