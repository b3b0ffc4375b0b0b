"""Questions to Kafka outside of the fetch loop, each over a connection made for it.

How far damage reaches, where logs begin and end, whether a broker can be reached.
"""
