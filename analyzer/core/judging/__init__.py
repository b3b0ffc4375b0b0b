"""Turns sums into locks: policies, their windows, the plan that holds them, and the judgement.

Everything is pure; the statements that keep running totals are in `analyzer.store.transaction`.
"""
