"""The SQL database: counts with the offsets they came from, locks with their feed.

`database` opens it and defines its tables, `transaction` has the statements that change counts, plans and
locks, `reports` reads for commands and health checks, `operations` has manual acts and upkeep.
"""
