"""The consumer group: our membership, dead members, and offsets committed for lag monitors.

Not here: positions. They come from the store, never from the group.
"""
