"""Bytes to columns to counts, and what was counted, read back.

- `records`: log records to requests, as columns; `counter`: requests to counts. Both are pure
- `buckets`, `counter_state`, `sql_joins`, `gaps`: what a flush stores of them
- `usage`, `usage_windows`, `usage_rows`, `traffic`, `repeated_records`, `grouping_differences`: questions
- `measured_delays`: how late records were

The transaction that stores counts is not here: see `flush`.
"""
