"""The transaction that counts, and everything that must commit with it.

Offsets, totals, buckets, rejected records, the plan in force, locks and the feed's version. Lists and lookups
for commands are in `analyzer.store.reports`.
"""
