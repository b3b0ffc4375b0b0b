"""Audits of closed days: their digests, their rows against the buckets, and the outcome of each audit."""
