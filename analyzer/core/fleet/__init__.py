"""Health of the gates of an installation: the problems of each, and why the log may not have their callers.

Counting and judging do not depend on anything in here.
"""
