"""Commands that act on the whole installation: `gatelock run`, `check`, `usage`, ...

Each module is one command; what it does is elsewhere.
"""
