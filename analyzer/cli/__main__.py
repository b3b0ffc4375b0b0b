"""`python -m analyzer.cli` is `gatelock`."""

from analyzer.cli import main

main()
