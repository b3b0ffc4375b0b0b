"""Log records to requests: one column per question (who, when, how much), or a reason why not.

Contains the log formats, the mapping of a source and the rules for single values. How many requests a caller
made is not known here: see `analyzer.core.counting`.
"""
