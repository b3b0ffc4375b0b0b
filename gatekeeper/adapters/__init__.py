"""Guards for web frameworks: deny requests that a gate or a limiter does not admit.

One module per framework: `asgi`, `fastapi`, `wsgi`, `flask`, `django`. They translate between a framework's
request and `admission_control`, which decides; `caller_extraction` and `route_patterns` read names from
requests, `refusal_response` writes the response to a denied request, `caller_view_response` the one with a
caller's own view. `queued_requests` has a limiter that lets requests wait. The request log is a separate
package, `gatekeeper.requestlog`.
"""
