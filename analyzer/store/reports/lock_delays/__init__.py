"""How late records and locks are, as the living installation has measured it."""
