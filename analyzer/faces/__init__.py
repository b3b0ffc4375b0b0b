"""Everything that operators and applications meet: commands, the API, pages, the lock feed, signals.

- `cli`: the commands; `api`: endpoints; `pages`: pages with forms; `feed`: locks for gates and their reports
- `signals`: health, metrics, and the checks of `gatelock doctor`
- `acts`: the table of acts, of which commands, endpoints and forms are made; `day_answers`: days as objects
- `app`, `authentication`, `wiring`: the application for the server
"""
