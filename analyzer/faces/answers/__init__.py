"""JSON objects that commands with `--json` print and the API answers with, and the acts they ask about.

One function for each, so that both say the same in the same words. How they are printed or sent is not here.
"""
