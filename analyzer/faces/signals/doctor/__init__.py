"""The checks of `gatelock doctor`: `examination` has the list of them."""
