"""After a restore: what is missing, and closing days again as they were billed; see docs/decisions/0080."""
