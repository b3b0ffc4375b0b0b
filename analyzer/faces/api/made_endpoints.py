"""Endpoints that are made from rows of the table of acts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from analyzer.acting.act import ActContext, Done, Note, NothingFound, fields_of
from analyzer.acting.foreseen import Foreseen
from analyzer.acting.parameters import Fault, Param, Parameter, Switch
from analyzer.faces.acts import ACTS, Act, List, function, path_of
from analyzer.faces.api.endpoints import TEXTS, ApiContext, ApiRequest, Endpoint, NotPossible, NotThere
from analyzer.faces.api.pages import PlacedRow
from analyzer.kernel.by import By

DRY_RUN = Parameter(
    "dry_run", "dry_run", Param(Switch(), "Show what would change, and change nothing.", True), False
)


def endpoint(row: Act | List) -> Endpoint:
    """Returns the endpoint of a row."""
    run = function(row.run)
    fields = tuple(field for field in fields_of(run) if field.param.kind.schema())
    text = " ".join(inspect.cleandoc(run.__doc__ or "").split())
    path = path_of(row)
    if isinstance(row, List):
        return Endpoint(
            "GET",
            path,
            row.scope,
            text,
            partial(_rows, run, fields),
            row.example,
            (*fields, TEXTS),
            row.place,
        )
    foresee = partial(_foreseen, function(row.foresee), fields) if row.foresee else None
    return Endpoint(
        "POST", path, row.scope, text, partial(_done, run, fields), row.example,
        (*fields, *([DRY_RUN] if row.has_dry_run else []), TEXTS), foresee=foresee,
    )  # fmt: skip


def _context(context: ApiContext, request: ApiRequest) -> ActContext:
    by = By(request.who, request.values.get("reason", "").strip(), request.values.get("dry_run", False))
    return ActContext(context.engine, context.settings, by, context.settings.counted_name, request.after)


def _arguments(fields: tuple[Parameter, ...], request: ApiRequest) -> dict[str, Any]:
    return {field.keyword: request.values[field.keyword] for field in fields}


def _answered(run: Callable[[], Any], fields: tuple[Parameter, ...]) -> Any:
    """Returns what `run` does. Raises NotPossible for a fault, NotThere where nothing is found."""
    try:
        return run()
    except Fault as fault:
        raise NotPossible(spelled(fault, fields)) from fault
    except NothingFound as nothing:
        raise NotThere(str(nothing)) from nothing


def spelled(fault: Fault, fields: Iterable[Parameter]) -> str:
    """Returns the sentence of a fault, with parameters in place of their names."""
    sentence = f"`{fault.name}`: {fault.why}" if fault.name else fault.why
    for field in fields:
        sentence = sentence.replace(f"<{field.name}>", f"`{field.name}`")
    return sentence


def _done(
    run: Callable[..., Done], fields: tuple[Parameter, ...], context: ApiContext, request: ApiRequest
) -> Mapping[str, object]:
    done = _answered(lambda: run(_context(context, request), **_arguments(fields, request)), fields)
    answer = {done.name: list(done.fields)} if done.name else done.fields[0]
    if not request.values.get("texts"):
        return answer
    texts = {"objects": list(done.fields), "sentences": list(done.sentences), "is_found": done.is_found}
    return {**answer, "texts": texts}


def _foreseen(
    foresee: Callable[..., Foreseen], fields: tuple[Parameter, ...], context: ApiContext, request: ApiRequest
) -> Foreseen:
    act = _context(context, request)
    foreseen: Foreseen = _answered(lambda: foresee(act, **_arguments(fields, request)), fields)
    return foreseen


def _rows(
    run: Callable[..., Any], fields: tuple[Parameter, ...], context: ApiContext, request: ApiRequest
) -> Iterator[PlacedRow]:
    rows = run(_context(context, request), **_arguments(fields, request))
    has_texts, is_first = request.values.get("texts"), True
    while (row := _answered(lambda: next(rows, None), fields)) is not None:
        if isinstance(row, Note):
            request.notes.append(row._asdict() | {"is_first": is_first})
            continue
        is_first = False
        if has_texts:
            yield row.place, {"fields": row.fields, "cells": row.cells, "is_wrong": row.is_wrong}
        else:
            yield row.place, row.fields


MADE = tuple(map(endpoint, ACTS))
