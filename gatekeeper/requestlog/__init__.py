"""The request log, written by the application: one line per request, with the gate's decision.

`asgi.RequestLog` and `wsgi.RequestLog` wrap an application and its guard. Records wait in
`background_writer`, whose thread writes them to a sink: `file`, `kafka` or `confluent`; `acknowledged` is the
common part of the last two. `log_record` has their format. The analyzer reads these logs, and has its own
readers.
"""
