"""Acts of operators, and work of jobs. An act commits with its entry in the audit log.

Acts of operators:

- `access`: tokens, and sessions of browsers
- `caller_changes`: facts about callers, overrides, exemptions
- `day_closing`: closing days, corrections
- `forgetting`: a caller's name leaves the database
- `locks_by_hand`: setting, extending and clearing locks
- `rejects`: rejected records, and taking them out for a retry
- `replaying`: counting logs again, comparison, swap
- `suspension`: opening every gate

Work of jobs and of the warden:

- `applied_facts`: facts that records state
- `braked_policies`: policies whose brake acts, and their release
- `changed_limits`: changes of the directory, judged where they are written
- `day_audit`: audits of closed days
- `followed_partitions`: which analyzer follows which partition; retired ones
- `handing_over`: what billing services have acknowledged
- `pruning`: deletion of what is beyond its retention
- `roll_up`: joining, folding and moving old buckets
- `running_jobs`: leases, records of runs, the size of steps
- `total_repair`: totals that do not equal the buckets
- `upkeep`: ending locks, and the list of what keeps tables bounded
- `waiting_judgements`: judgements that no growth causes
"""
