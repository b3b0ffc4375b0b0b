"""Commands that manage one kind of thing: `gatelock locks list`, `gatelock tokens create`, ...

Each module is one noun with its subcommands; what they do is elsewhere.
"""
