"""The durations of the steps of a flush: measured in its transaction, and metrics after the commit."""
