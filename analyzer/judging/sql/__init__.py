"""Judgement in SQL: running totals, slots of rolling windows, judgements that wait, activations."""
