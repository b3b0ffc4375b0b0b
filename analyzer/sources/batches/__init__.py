"""Kafka's on-disk format: record batches v2 (KIP-98) to columns of offsets, timestamps and values.

Contains checksums, decompression with a bound, the record decoder and the search for the end of damage.
What a value means is not known here: see `analyzer.counting.records`.
"""
