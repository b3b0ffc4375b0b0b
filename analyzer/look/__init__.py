"""A first look at a request log: its format, its callers, and the locks that a limit would set.

`log_detection` recognises formats and fields, `route_suggestions` routes. `traffic_profile` keeps what was
counted by series, `rehearsal` judges it as a surge policy would have, `limit_suggestions` finds a limit.
`look_report` is the result, `starter_config` the configuration that follows from it. All of it is pure: files
are read by `analyzer.files`, counted by `analyzer.core.counting`, and shown by `analyzer.cli`.
"""
