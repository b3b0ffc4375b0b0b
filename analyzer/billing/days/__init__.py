"""Closing days: how far each partition must be counted, the cut, the frozen rows; corrections afterwards.

`adjustments`, `day_rows` and `references` are what each flush needs to know of days.
"""
