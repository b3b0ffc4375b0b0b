"""The only package that uses private names of kafka-python, or changes its objects.

- `features`: the table of these names, by the feature that needs them, and the rule for a changed release;
- `consumer`: the typed facade; the rest of the package above calls nothing else from here but the table;
- `interfaces`: what the facade returns, and what the modules behind it fill in;
- behind the facade: `raw_fetcher`, `join_coordinator`, `connection_watch`, `large_reads` and
  `decompression_bound`, one module for each behaviour that is changed, and `class_swap`.

Not here: anything that public names of kafka-python do. A test reads the source for private names elsewhere.
"""
