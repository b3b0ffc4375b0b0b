"""Commands that manage one kind of thing: `gatelock locks list`, `gatelock upkeep tokens create`, ...

One module for each noun, with its subcommands. The work is done by the modules that they import.
"""
