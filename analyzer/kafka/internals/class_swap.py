"""Replaces the class of an object that kafka-python has made, by a subclass with more behaviour.

kafka-python makes its fetcher, coordinator and connection manager itself and offers no way to hand in others.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def swap_class(part: object, expected: type, replacement: type) -> bool:
    """Makes `part` a `replacement`; whether it was exactly of the class `expected`."""
    if type(part) is not expected:
        log.warning("kafka-python made a %s instead of a %s", type(part).__name__, expected.__name__)
        return False
    part.__class__ = replacement
    return True
