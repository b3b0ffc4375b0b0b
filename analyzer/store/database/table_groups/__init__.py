"""The tables of counters and of jobs; the others are in `schema` and `billing_tables`."""
