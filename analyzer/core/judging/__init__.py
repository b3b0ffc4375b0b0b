"""Sums to locks: policies, their windows, the plan that holds them, and what a sum does to a lock.

Everything is pure; the statements that keep running totals are in `analyzer.store.transaction`.
"""
