"""Requests to sums: a value per meter, grouping and minute, with the ledger of each partition.

Contains the reference implementation of the `Counter` protocol, the cardinality limit and the detection of a
wrong mapping. Limits and locks are not known here: see `analyzer.judging`.
"""
