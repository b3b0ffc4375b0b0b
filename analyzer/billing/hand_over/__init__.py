"""Hands usage of closed days over to billing services: events, their formats, and delivering them once.

`deliveries` has what a service has acknowledged.
"""
