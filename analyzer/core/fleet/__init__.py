"""The gates of an installation: what is wrong with each, and why the log may not know their callers.

No count and no lock depends on anything in here.
"""
