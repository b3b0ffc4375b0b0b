"""The only package that uses private names of kafka-python, or changes its objects.

- `private_names`: the table of these names, and the check that the installed release has them;
- `consumer`: the typed facade; the rest of the package above calls nothing else from here but the check;
- behind the facade: `raw_fetcher` and `broker_connections`, which change what kafka-python makes.

Not here: anything that public names of kafka-python do. A test reads the source for private names elsewhere.
"""
