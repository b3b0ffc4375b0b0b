"""The foundation of every chapter: the database and its tables, the clock, leases, tokens, errors and logs.

- `model`: values that cross the analyzer's seams; `errors`; `logs` with `secrets`, which masks them
- `database`: the engine, its statements' helpers, the audit log, leases, migrations
- `tables`: every table, in one schema
- `jobs`: leases and records of scheduled work; `tokens`, and `sessions` of browsers
- `time_texts`, `time_expressions`, `kept_ages`, `shipping_delays`, `flush_steps`: small values that several
  chapters share

Nothing in here knows callers, policies or days; it imports no other chapter.
"""
