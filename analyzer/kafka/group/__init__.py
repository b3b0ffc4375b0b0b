"""The consumer group: who is a member, which members died, and the offsets committed as advice.

Positions always come from the store; nothing here decides where a partition continues.
"""
