"""The database itself: engine, tables, migrations, its clock, and the helpers every statement uses.

What the tables mean is decided elsewhere: see the chapters above.
"""
