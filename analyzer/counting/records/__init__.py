"""Log records to requests: one column per field that the plan needs, or a reason why a record is rejected.

`reader` is the entry: it reads `columns` in a fixed order, and these apply `value_rules`. `formats` is the
table of log formats (`json_format` with `strict_json`, `combined_format`), `mapping` says where a source has
its fields. `timestamps`, `decimals` and `route_matcher` parse single values. How many requests a caller made
is not known here: see `analyzer.counting.counter`.
"""
