"""Common parts of jobs: leases and records of their runs, outcomes, and the size of their steps."""
