"""Verdicts in the log: when locks were in force, and which verdicts are believed by that.

Reading a verdict from a record is `analyzer.core`; locks are published by `lock_feed`.
"""
