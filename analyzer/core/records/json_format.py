"""JSON documents: the values at some paths, by msgspec where it can and by the exact reader where it must."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from analyzer.core.model import RejectReason
from analyzer.core.records import strict_json
from analyzer.core.records.formats import Columns, not_utf8
from analyzer.core.records.mapping import FieldPath

PathTree = dict[str, Any]  # by key: a tree, or None where a value is

REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)


class JsonFormat:
    """Reads the values at `paths`, of many documents at once."""

    def __init__(self, paths: Sequence[FieldPath]) -> None:
        self._paths = tuple(paths)
        self._structs: PathStructs | None
        try:
            self._structs = PathStructs(self._paths)
        except ValueError:  # one path leads through another, or a key has quotes in it
            self._structs = None

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        """A column of values for each path, and which documents are none; theirs are missing."""
        refused: dict[int, RejectReason] = dict.fromkeys(not_utf8(values), "bad-utf8")
        if self._structs is None:
            columns: Columns = [[None] * len(values) for _ in self._paths]
            doubtful: Collection[int] = range(len(values))
        else:
            columns, doubtful = self._structs.read(values, refused)
        for at in doubtful:
            if at in refused:
                continue
            # It need not be wrong: msgspec refuses some documents that are good JSON.
            try:
                document = strict_json.read(values[at].decode())
            except strict_json.NotJsonError:
                refused[at] = "bad-json"
            else:
                for column, path in zip(columns, self._paths, strict=True):
                    column[at] = value_at(path, document)
        return columns, refused


class PathStructs:
    """The paths as nested msgspec types, so that nothing else of a document is made into objects."""

    def __init__(self, paths: Sequence[FieldPath]) -> None:
        """Raises ValueError when msgspec has no such type."""
        tree: PathTree = {}
        for path in paths:
            _plant(tree, path)
        struct = _struct(tree)
        self._missing = struct()
        # Numbers that are not whole come as their digits. No string in JSON is bytes, so nothing is mixed up.
        self._decode = msgspec.json.Decoder(struct, float_hook=str.encode).decode
        self._names = [_attributes(tree, path) for path in paths]

    def read(self, values: Sequence[bytes], skip: Collection[int]) -> tuple[Columns, list[int]]:
        """A column for each path, and which documents msgspec refuses. Those to `skip` it must not see."""
        doubtful: list[int] = []
        decode = self._decode
        try:
            rows = [decode(value) for value in values] if not skip else None
        except REFUSALS:
            rows = None
        if rows is None:
            rows = []
            for at, value in enumerate(values):
                try:
                    rows.append(self._missing if at in skip else decode(value))
                except REFUSALS:
                    rows.append(self._missing)
                    doubtful.append(at)
        return [_column(rows, names) for names in self._names], doubtful


def _column(rows: Sequence[Any], names: Sequence[str]) -> list[Any]:
    try:
        return list(map(attrgetter(".".join(names)), rows))
    except AttributeError:  # a parent is null
        column = rows
        for name in names:
            column = [None if row is None else getattr(row, name) for row in column]
        return list(column)


def _plant(tree: PathTree, path: FieldPath) -> None:
    *parents, last = path
    for key in parents:
        tree = tree.setdefault(key, {})
        if tree is None:
            raise ValueError("a path leads through another one's value")
    if tree.setdefault(last) is not None:
        raise ValueError("a path leads through another one's value")


def _attributes(tree: PathTree, path: FieldPath) -> list[str]:
    names = []
    for key in path:
        names.append(f"f{list(tree).index(key)}")
        tree = tree[key]
    return names


def _struct(tree: PathTree) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for n, below in enumerate(tree.values()):
        if below is None:
            fields.append((f"f{n}", Any, None))
        else:
            inner = _struct(below)
            fields.append((f"f{n}", inner | None, None))
    rename = {f"f{n}": key for n, key in enumerate(tree)}
    return msgspec.defstruct("Document", fields, rename=rename, gc=False)


def value_at(path: FieldPath, document: object) -> Any:
    """What is there; None when it is missing."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document
