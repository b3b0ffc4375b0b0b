"""Work besides counting that one analyzer does for all, under a lease.

- `job_runner` runs the warden's jobs each second;
- `scheduled_jobs` runs the others at their moments, under a lease each, and `job_scheduler` calls it;
- `failing_jobs` has what happens after a failure;
- `upkeep_jobs` lists the jobs: ending locks, and keeping the tables small; `alarm_watches` looks for alarms;
- `upkeep`, `roll_up`, `pruning`, `total_repair` do the work in SQL;
- `audit`, `total_differences`, `lock_differences` compare everything that is stored with itself.

Jobs have threads and database connections that counting does not use.

Counting does not depend on any of it.
"""
