"""`python -m analyzer.faces.cli` is `gatelock`."""

from analyzer.faces.cli import main

main()
