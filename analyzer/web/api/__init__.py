"""Endpoints that read what is stored, for applications: views of callers.

The lock feed, status reports of gates, health and metrics are in the package above.
"""
