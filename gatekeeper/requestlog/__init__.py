"""The request log, written by the application itself: one line for each request, with the gate's verdict.

`asgi.RequestLog` and `wsgi.RequestLog` go around an application, outside of its guard.
"""
