"""Work besides counting that one analyzer does for all, under a lease.

- `job_runner` runs jobs step by step, on threads and database connections that counting does not use;
- `upkeep_jobs` lists the jobs: ending locks, and keeping the tables small.

Counting does not depend on any of it. The statements are in `analyzer.store.operations`.
"""
