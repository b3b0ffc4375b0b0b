"""Manual acts and upkeep: tokens, suspension, retired sources, rejected records, roll-up and retention.

Each act commits with its entry in the audit log.
"""
