"""Commands that act on the whole installation: `gatelock run`, `check`, `usage`, ...

One module for each command. They parse options and print; the work is done by the modules that they import.
"""
