"""Option names of Kafka clients, translated to the keys of `[kafka]`.

Accepts kafka-python's, librdkafka's and Java's spellings, JAAS lines included.
"""
