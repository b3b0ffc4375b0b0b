"""The API for applications and operators: lists, views of callers, and acts, by a table of endpoints.

- `endpoint_table`: every endpoint, put together from those below
- `made_endpoints`: those made from the table of acts; `usage_endpoints`,
  `installation_endpoints`, `policy_endpoints`: by hand
- `callers_endpoint`: what one caller has used, for its application to pass on
- `event_stream`: server-sent events about what has changed
- `endpoints`: what a row of the table is
- `requested_values`, `request_bodies`, `pages`: how requests are read
- `serving_endpoints`: adds the table to the application
- `openapi`: the document of the API; `other_operations`: its parts about paths outside of the table
- `client_source`: the source of `gatekeeper.client`, by the table

The lock feed and status reports of gates are in `analyzer.faces.feed`, health and metrics in
`analyzer.faces.signals`.
"""
