"""Simulation of policies on stored counts: pure, and by the functions that judge live.

Neither SQL nor the clock: `analyzer.store.reports.simulated` reads the buckets.
"""
