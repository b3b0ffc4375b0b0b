"""What a flush did and how long: the durations of its steps, and its trace by OpenTelemetry.

Nothing here is part of a transaction: steps are measured in it, spans are made after the commit.
"""
