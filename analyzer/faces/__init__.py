"""Everything that operators and applications meet: commands, the API, pages, the lock feed, signals.

- `cli`: the commands; `api`: endpoints; `pages`: pages with forms; `feed`: locks for gates and their reports
- `signals`: health, metrics, and the checks of `gatelock doctor`
- `answers`: objects that several faces show
- `app`, `authentication`, `wiring`: the application for the server
"""
