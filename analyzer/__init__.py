"""The analyzer: counts requests from their logs into a database, judges policies, and raises locks.

Chapters by subject; each imports only those before it:

- `kernel`: the database, its tables, and values that all chapters share
- `plan`: what is counted, how records are read, what policies say
- `sources`: record sets in; `server`: HTTP, apart from what it serves
- `counting`, `judging`, `callers`, `billing`, `gates`, `forecast`: the subjects
- `flush`: the transaction that counts, and the loop; it composes the subjects
- `replay`, `maintenance`, `delays`: a log counted again, work for all analyzers, how late locks are
- `config`: the settings; `demo`: processes to show the main job
- `build` puts a process together, `daemon` runs the loop with its threads, `watchdog` ends a process whose
  loop hangs, `garbage_collector` makes collections rare
- `faces`: commands, the API, pages, the lock feed, health and metrics

Not here: code that runs inside an application, which is the package `gatekeeper`.
"""
