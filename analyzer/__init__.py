"""Counts requests where they are logged, and judges them where they are counted."""
