"""A first look at a request log: its format, its callers, and the locks that a limit would set.

`log_detection` recognises formats and fields, `route_suggestions` routes. `log_scan` reads and counts
streams. `traffic_profile` keeps what was counted by series, `rehearsal` judges it as a surge policy would
have, `limit_suggestions` finds a limit. `preview_report` is the result, `starter_config` the configuration
that follows from it. All but `log_scan` is pure.
"""
