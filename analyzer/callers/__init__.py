"""Callers by name: plan, tenant, overrides, exemptions, facts that records state, and what is known of one.

- `caller_changes`, `changed_limits`: acts of operators, and what they change at once
- `record_facts`, `applied_facts`: what records state about their callers
- `caller_standing`, `caller_document`, `explained_caller`, `caller_answers`: all that is known of one
- `forgetting`: a name leaves the database. It touches every chapter and is above all of them
"""
