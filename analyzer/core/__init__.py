"""What is counted and what follows from it: pure functions of values; no clock, no I/O."""
