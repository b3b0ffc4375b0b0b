"""Requests to Kafka outside of the fetch loop, each over a separate connection.

How far damage reaches, where logs begin and end, whether a broker can be reached. Nothing here counts.
"""
