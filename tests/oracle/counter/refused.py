"""What stops the slow counter."""


class Refused(Exception):
    """A record, with the reason; or a batch, with the status."""
