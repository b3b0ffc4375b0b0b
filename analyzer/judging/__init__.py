"""Totals to locks: the rules of each kind of policy, what they need from the database, and the locks.

- `kinds`: one module for each kind of policy; `judge` asks them, with `circumstances`, `totals`, `rolling`
- `activation_steps`, `brakes`, `caller_limits`, `earned_notices`: rules around them. All these are pure
- `sql`: running totals, slots, the plan in force, judgements that wait
- `locks`: the feed of locks, locks by hand, what verdicts in a log are worth

What policies say is not here: see `plan`.
"""
