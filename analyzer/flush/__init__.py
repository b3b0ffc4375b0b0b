"""The transaction that counts, and the loop that calls it.

`flush` has the transaction's order, on one page; `pipeline` the loop, on one screen. `flush_executors` run
flushes beside the reading, `turn_budget` bounds a turn, `sql_store` is the loop's store, `analyzers` their
agreement on a plan, `retry` and `rejects` what could not be read, `followed_partitions` which analyzer reads
which partition.

It composes counting, judging, callers and billing, and decides nothing that is theirs.
"""
