"""Log records to requests: one column per field that the plan needs, or a reason why a record is rejected.

`reader` is the entry: it reads `columns` in a fixed order. `formats` is the table of log formats
(`json_format` with `strict_json`, `combined_format`), `envelopes` what collectors put around a line. Where a
source has its fields and what single values mean is part of the plan (`analyzer.plan`). How many requests a
caller made is not known here: see `analyzer.counting.counter`.
"""
