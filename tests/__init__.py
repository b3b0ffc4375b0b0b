"""Tests of both packages; their names are sentences. `make test` runs all."""
