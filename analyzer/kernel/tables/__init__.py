"""Every table, in one schema: `schema` has those that flushes write, and imports the others by subject."""
