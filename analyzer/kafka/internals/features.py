"""Whether kafka-python still has the private methods that we rest on, as we know them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence


def changed(owner: type, faces: Mapping[str, Sequence[str]]) -> list[str]:
    """Those methods of `owner` that are gone, or take other parameters than these.

    >>> changed(dict, {"fromkeys": ["iterable", "value"], "get": ["self", "key"], "look": ["self"]})
    ['get', 'look']
    """
    return [name for name, face in faces.items() if parameters(owner, name) != list(face)]


def parameters(owner: type, name: str) -> list[str]:
    """The names of a method's parameters; none when there is no such method."""
    method = getattr(owner, name, None)
    return list(inspect.signature(method).parameters) if callable(method) else []
