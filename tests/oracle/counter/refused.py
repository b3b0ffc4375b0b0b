"""The exception of the slow counter."""


class Refused(Exception):
    """A record or a batch cannot be counted; the message is the reason or the status."""
