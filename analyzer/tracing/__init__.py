"""The durations of the steps of a flush, and its trace by OpenTelemetry.

Nothing here is part of a transaction: steps are measured in it, spans are made after the commit.
"""
