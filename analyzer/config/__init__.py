"""The configuration: a TOML file, environment variables and secret files, read with every fault at once.

- `settings` is the whole, as the rest of the analyzer gets it; `tables` has a model for each table of the
file;
- `values` are the types of single values, `checks` what has to agree between tables;
- `environment` and `kernel.secrets` are the other two origins of values; `kafka_options` has the names of
the client's options;
- `diagnostics` turns faults into messages with file, line and cure.

Not here: the plan that policies and meters are compiled to (`analyzer.plan`).
"""
