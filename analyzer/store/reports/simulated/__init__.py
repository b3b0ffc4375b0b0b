"""Simulation of policies on stored counts: which buckets are read, and what follows from them."""
