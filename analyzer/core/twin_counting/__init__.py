"""Counting records by two plans at once: the one that counted them, and another one."""
