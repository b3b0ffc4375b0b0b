"""Gatelock's tests: what holds, said as sentences. `make test` runs them all."""
