"""Option names of Kafka clients, translated to the keys of `[kafka]`.

Accepts the names of kafka-python, librdkafka and Java's clients, and JAAS login lines.
"""
