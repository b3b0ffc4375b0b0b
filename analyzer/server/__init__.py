"""An HTTP server that bounds its clients: connections, TLS, compression, problems as RFC 9457 has them.

What it serves is not known here: see `faces`.
"""
