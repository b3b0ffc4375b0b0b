"""Days of zones: which are cut, and what flushes book on the open day since."""
