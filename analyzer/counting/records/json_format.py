"""JSON documents: reads the values at some paths, with msgspec or with the strict reader.

msgspec builds one nested struct type from the paths, so that only the wanted values of a document become
objects. It also refuses some valid documents (see `strict_json`); these are read again by the slow reader.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from analyzer.counting.records import strict_json
from analyzer.kernel.model import RejectReason
from analyzer.plan.format_decoder import Columns, invalid_utf8, text_of_bytes
from analyzer.plan.mapping import FieldPath

PathTree = dict[str, Any]  # by key: a subtree, or None for a wanted value

DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


class JsonFormat:
    """Reads the values at `paths` of many documents at once."""

    def __init__(self, paths: Sequence[FieldPath]) -> None:
        self._paths = tuple(paths)
        self._structs: PathStructs | None
        try:
            self._structs = PathStructs(self._paths)
        except ValueError:  # one path is a prefix of another, or a key contains quotation marks
            self._structs = None

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        """Returns a column per path, and the reasons of unreadable documents, whose values are None."""
        reasons: dict[int, RejectReason] = {}
        invalid = frozenset(invalid_utf8(values))
        if self._structs is None:
            columns: Columns = [[None] * len(values) for _ in self._paths]
            undecided: Collection[int] = range(len(values))
        else:
            columns, undecided = self._structs.read(values, invalid)
        for index in undecided:
            try:
                document = strict_json.read(text_of_bytes(values[index]))
            except strict_json.NotJsonError:
                reasons[index] = "bad-utf8" if index in invalid else "bad-json"
            else:
                for column, path in zip(columns, self._paths, strict=True):
                    column[index] = value_at(path, document)
        return columns, reasons


class PathStructs:
    """The paths as nested msgspec types, so that only the wanted values of a document become objects."""

    def __init__(self, paths: Sequence[FieldPath]) -> None:
        """Raises ValueError when msgspec has no such type."""
        tree: PathTree = {}
        for path in paths:
            _add_path(tree, path)
        struct = _struct(tree)
        self._missing = struct()
        # Numbers that are not whole arrive as their digits. No JSON string is bytes, so they stay apart.
        self._decode = msgspec.json.Decoder(struct, float_hook=str.encode).decode
        self._names = [_attribute_names(tree, path) for path in paths]

    def read(self, values: Sequence[bytes], invalid: Collection[int]) -> tuple[Columns, list[int]]:
        """Returns a column per path, and the indexes of documents that msgspec refuses.

        Documents in `invalid` are not UTF-8: they are refused, and not decoded, because msgspec does not look
        at the bytes of strings that nothing wants.
        """
        refused: list[int] = []
        decode = self._decode
        try:
            rows = [decode(value) for value in values] if not invalid else None
        except DECODE_ERRORS:
            rows = None
        if rows is None:
            rows = []
            for index, value in enumerate(values):
                try:
                    if index in invalid:
                        raise ValueError("not UTF-8")
                    rows.append(decode(value))
                except DECODE_ERRORS:
                    rows.append(self._missing)
                    refused.append(index)
        return [_column(rows, names) for names in self._names], refused


def _column(rows: Sequence[Any], names: Sequence[str]) -> list[Any]:
    try:
        return list(map(attrgetter(".".join(names)), rows))
    except AttributeError:  # a parent is null
        column = rows
        for name in names:
            column = [None if row is None else getattr(row, name) for row in column]
        return list(column)


def _add_path(tree: PathTree, path: FieldPath) -> None:
    *parents, last = path
    for key in parents:
        tree = tree.setdefault(key, {})
        if tree is None:
            raise ValueError("a path is a prefix of another one")
    if tree.setdefault(last) is not None:
        raise ValueError("a path is a prefix of another one")


def _attribute_names(tree: PathTree, path: FieldPath) -> list[str]:
    names = []
    for key in path:
        names.append(f"f{list(tree).index(key)}")
        tree = tree[key]
    return names


def _struct(tree: PathTree) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for number, subtree in enumerate(tree.values()):
        if subtree is None:
            fields.append((f"f{number}", Any, None))
        else:
            inner = _struct(subtree)
            fields.append((f"f{number}", inner | None, None))
    rename = {f"f{number}": key for number, key in enumerate(tree)}
    return msgspec.defstruct("Document", fields, rename=rename, gc=False)


def value_at(path: FieldPath, document: object) -> Any:
    """Returns the value at `path`; None when it is missing."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document
