"""Delays of records and locks, as the living installation has measured them."""
