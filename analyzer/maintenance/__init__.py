"""Work besides counting that one analyzer does for all, under a lease.

- `job_table` lists the jobs: when each runs, under which lease, and what does its work;
- `job_runner` runs them step by step, and `job_scheduler` calls it at their moments;
- `failing_jobs` has what happens after a failure;
- `roll_up`, `pruning`, `total_repair` do work in SQL;
- `audit`, `total_differences`, `lock_differences` compare everything that is stored with itself.

Jobs have threads and database connections that counting does not use.

Counting does not depend on any of it.
"""
