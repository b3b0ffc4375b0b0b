"""The checks of `gatelock doctor`: `examination` has the list of them, and most of the checks."""
