"""Record sets in, with the positions from which they continue.

- `positions`: the protocols between a source, the loop and the store
- `kafka`: topics; `files`: files that grow, rotate, or are imported
- `batches`: Kafka's record batches, as bytes

What a record says is not known here: see `counting`.
"""
