"""Sets `__class__` of an object that kafka-python has created to a subclass.

kafka-python creates its fetcher, coordinator and connection manager itself, and takes no others as arguments.
To find what runs after such a change, look for the subclass: `raw_fetcher`, `join_coordinator`,
`connection_watch`.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def swap_class(part: object, expected: type, replacement: type) -> bool:
    """Makes `part` a `replacement`, if its class is exactly `expected`; returns whether it was."""
    if type(part) is not expected:
        log.warning("kafka-python made a %s instead of a %s", type(part).__name__, expected.__name__)
        return False
    part.__class__ = replacement
    return True
