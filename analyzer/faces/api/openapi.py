"""The OpenAPI 3.1 document of the API, made from the table of endpoints; docs/openapi.json is a copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from analyzer.acting.parameters import Parameter
from analyzer.faces.api.endpoints import Endpoint
from analyzer.faces.api.other_operations import other_operations
from analyzer.kernel.tokens import SCOPES

VERSION = "1"  # of the API, as in its paths
PROBLEM = {"$ref": "#/components/schemas/Problem"}
PROBLEMS = {
    "400": "A parameter is wrong, unknown, missing, or given twice.",
    "401": "No token, or one that is not valid.",
    "403": "The scope of the token does not permit it, or a page of another origin has asked.",
    "404": "What is asked for does not exist.",
    "409": "It cannot be done in the present state.",
    "413": "The body is too long.",
    "415": "The body is not application/json.",
    "422": "What is asked for cannot be: a name that is not counted, a time that is too long.",
    "503": "The database cannot be reached or takes too long, or too many requests wait. See Retry-After.",
}
OF_READING = ("400", "401", "403", "404", "409", "422", "503")


def openapi_document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Returns the document about these endpoints, and what else the server answers."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    for path, operations in other_operations(_problem).items():
        paths.setdefault(path, {}).update(operations)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Gatelock",
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "What the commands of `gatelock` read and do, in the same words: the path is the "
            "command. Times are RFC 3339; names that end in `_s` are in seconds.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `gatelock upkeep tokens create NAME --scope SCOPE`. Scopes: "
                    f"{', '.join(SCOPES)}; each includes those before it. Until the first one is made, this "
                    "machine may read, and nothing else.",
                }
            },
            "schemas": {"Problem": _problem_schema()},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    codes = [*PROBLEMS] if endpoint.has_body else list(OF_READING)
    operation: dict[str, Any] = {
        "operationId": "_".join((endpoint.method.lower(), *endpoint.path.split("/")[2:])),
        "summary": endpoint.about.partition(". ")[0].rstrip("."),
        "description": f"{endpoint.about} Scope: `{endpoint.scope}`.",
        "tags": [endpoint.path.split("/")[2]],
        "responses": {
            "200": {"description": "The answer.", "content": _content(endpoint)},
            **{code: _problem(PROBLEMS[code]) for code in codes},
        },
    }
    if endpoint.has_body:
        operation["requestBody"] = _body(endpoint)
    else:
        operation["parameters"] = [_parameter(parameter) for parameter in endpoint.all_parameters]
        operation["responses"]["304"] = {"description": "As the entity tag in If-None-Match says."}
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.param.about,
        "schema": _with_default(parameter),
        "example": parameter.param.example,
    }


def _body(endpoint: Endpoint) -> dict[str, Any]:
    parameters = endpoint.all_parameters
    schema = {
        "type": "object",
        "properties": {
            parameter.name: _with_default(parameter)
            | {"description": parameter.param.about, "examples": [parameter.param.example]}
            for parameter in parameters
        },
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _with_default(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = parameter.param.kind.schema()
    return (
        schema
        if parameter.default is None or parameter.name == "since"
        else schema | {"default": parameter.default}
    )


def _content(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.place is None:
        return {"application/json": {"schema": {"type": "object"}, "example": endpoint.example}}
    schema = {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"type": "object"}},
            "next": {"type": ["string", "null"], "description": "`cursor` of the next page; null: the last."},
            "notes": {"type": "array", "items": {"type": "object"}, "description": "With `texts`."},
        },
        "required": ["items", "next"],
        "additionalProperties": False,
    }
    example: Mapping[str, Any] = {"items": [endpoint.example], "next": None}
    return {"application/json": {"schema": schema, "example": example}}


def _problem(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/problem+json": {"schema": PROBLEM}}}


def _problem_schema() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "RFC 9457",
        "properties": {"type": text, "title": text, "status": {"type": "integer"}, "detail": text},
        "required": ["type", "title", "status", "detail"],
        "additionalProperties": False,
    }
