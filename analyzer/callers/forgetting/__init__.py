"""Forgetting a caller: its name leaves the database, and what was counted stays."""
