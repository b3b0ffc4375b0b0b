"""Refuses requests where they arrive: gates that know the locks, and exact limiters for short periods."""
