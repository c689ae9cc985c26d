"""The OpenAPI document of a server: what it takes and answers, for the model that it serves.

Relies on a model's columns and classes. Promises a document of OpenAPI 3.1 that names the columns
of rows and of answers as they are.
"""

from __future__ import annotations

from typing import Any

from dmondrian import __version__
from dmondrian.data import Column
from dmondrian.data.columns import has_times
from dmondrian.serving.request_rows import ARROW, JSON, LONGEST_KEY, MOST_ROWS
from dmondrian.serving.served_model import ServedModel

_STATUSES = {
    "400": "The body is not of the type that it claims.",
    "408": "The body stopped coming.",
    "413": "The body is too long.",
    "415": "The body is of another type.",
    "422": "The model cannot take these rows; the message is that of `dmondrian score`.",
    "503": "Too much waits.",
}


_POSITION = "Weight that the model had learned: number of rows, unless rows had weights."


def openapi(model: ServedModel, learns: bool) -> dict[str, Any]:
    """Return the document, as JSON values.

    Parameters
    ----------
    model : ServedModel
    learns : bool
        Whether ``/learn`` learns.
    """
    health = _get("health", "What is served, and how far it is", JSON, "Health")
    health["responses"]["503"] = {
        **health["responses"]["200"], "description": "Nothing is learned any more."
    }  # fmt: skip
    paths: dict[str, Any] = {
        "/predict": {
            "post": {
                "operationId": "predict",
                "summary": "Forecasts of rows, from one state of the model",
                "requestBody": {
                    "required": True,
                    "content": {
                        JSON: {"schema": {"$ref": "#/components/schemas/Rows"}},
                        ARROW: {"schema": _binary()},
                    },
                },
                "responses": {
                    "200": {
                        "description": "Forecasts, in the form of the request.",
                        "headers": {
                            "dmondrian-position": {
                                "description": _POSITION,
                                "schema": {"type": "integer"},
                            }
                        },
                        "content": {
                            JSON: {"schema": {"$ref": "#/components/schemas/Forecasts"}},
                            ARROW: {"schema": _binary()},
                        },
                    },
                    **_errors(*_STATUSES, *(["409"] if learns else [])),
                },
            }
        },
        "/health": {"get": health},
        "/metrics": {"get": _get("metrics", "Metrics for Prometheus", "text/plain", None)},
        "/openapi.json": {"get": _get("openapi", "This document", JSON, None)},
    }
    schemas: dict[str, Any] = {
        "Row": _row(model),
        "Rows": _rows(model, learns),
        "Forecast": _forecast(model),
        "Forecasts": _forecasts(model),
        "Health": {"type": "object", "required": ["status", "model", "position"]},
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["type", "message"],
                    "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
                }
            },
        },
    }
    if learns:
        paths["/learn"] = {
            "post": {
                "operationId": "learn",
                "summary": "Labels of rows, learned once each, in the order of labels",
                "requestBody": {
                    "required": True,
                    "content": {JSON: {"schema": {"$ref": "#/components/schemas/Labels"}}},
                },
                "responses": {
                    "200": {
                        "description": "How many were learned; all of the request.",
                        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Learned"}}},
                    },
                    **_errors(*_STATUSES, "409"),
                },
            }
        }
        schemas["Labels"] = _labels(model)
        numbers = {name: {"type": "integer"} for name in ("learned", "passed", "position", "saved")}
        schemas["Learned"] = {
            "type": "object", "required": list(numbers), "properties": numbers
        }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"dmondrian: {model.estimator.algorithm}",
            "version": __version__,
            "summary": "Forecasts of an online Mondrian forest",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _binary() -> dict[str, Any]:
    return {"type": "string", "format": "binary", "description": "An Arrow IPC stream."}


def _errors(*statuses: str) -> dict[str, Any]:
    texts = {**_STATUSES, "409": "Keys are taken, or no rows wait under them."}
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {code: {"description": texts[code], "content": content} for code in sorted(statuses)}


def _get(name: str, summary: str, kind: str, schema: str | None) -> dict[str, Any]:
    shape = {} if schema is None else {"$ref": f"#/components/schemas/{schema}"}
    answer = {"description": summary, "content": {kind: {"schema": shape}}}
    return {"operationId": name, "summary": summary, "responses": {"200": answer}}


def _row(model: ServedModel) -> dict[str, Any]:
    if model.names is None:
        n = model.n_columns
        number = _value(model, None)
        return {"type": "array", "items": number, "minItems": n, "maxItems": n}
    schema = model.frames.schema
    columns = {} if schema is None else {column.name: column for column in schema.columns}
    return {
        "type": "object",
        "required": list(model.names),
        "properties": {name: _value(model, columns.get(name)) for name in model.names},
    }


def _value(model: ServedModel, column: Column | None) -> dict[str, Any]:
    if column is None and "_columns" in model.estimator.__dict__:  # some may be categories
        return {"type": ["string", "number", "boolean", "null"]}
    if column is None:
        return {"type": ["number", "null"] if model.takes_nulls else "number"}
    if has_times(column):
        has_zone = "tz=" in column.type
        text = "ISO 8601" + ("" if has_zone else " without a zone, such as 2026-01-31T12:00:00")
        shape: dict[str, Any] = {"type": ["string", "null"], "description": text}
        return shape | ({"format": "date-time"} if has_zone else {})
    if column.kind == "text" or (column.kind == "category" and "string" in column.type):
        return {"type": ["string", "null"]}
    if column.kind == "category":
        return {"type": ["string", "number", "boolean", "null"]}
    return {"type": ["number", "boolean", "null"]}


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the shape of rows as columns."""
    properties = {
        name: {"type": "array", "items": items} for name, items in row["properties"].items()
    }
    return {"type": "object", "required": row["required"], "properties": properties}


def _keys() -> dict[str, Any]:
    text = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}
    return {"type": "array", "items": text, "uniqueItems": True}


def _rows(model: ServedModel, learns: bool) -> dict[str, Any]:
    rows = {
        "type": "array",
        "items": {"$ref": "#/components/schemas/Row"},
        "minItems": 1,
        "maxItems": MOST_ROWS,
    }
    more: dict[str, Any] = {"details": {"type": "boolean", "default": True}}
    if learns:
        more["keys"] = _keys()
    forms = [_form("rows", rows, more), rows]
    if model.names is not None:
        forms.insert(1, _form("columns", _columns(_row(model)), more))
    return {"oneOf": forms}


def _form(name: str, shape: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    properties = {name: shape, **more}
    return {
        "type": "object",
        "required": [name],
        "properties": properties,
        "additionalProperties": False,
    }


def _forecast(model: ServedModel) -> dict[str, Any]:
    names, details = model.score_names(False), model.score_names(True)
    number = {"type": ["number", "null"]}
    properties: dict[str, Any] = dict.fromkeys(details, number)
    if model.classes is not None:
        properties["prediction"] = {"enum": list(model.classes)}
    return {
        "type": "object",
        "required": names,
        "properties": properties,
        "additionalProperties": False,
    }


def _forecasts(model: ServedModel) -> dict[str, Any]:
    position = {"type": "integer", "description": _POSITION}
    rows = {"type": "array", "items": {"$ref": "#/components/schemas/Forecast"}}
    more = {"position": position, "keys": _keys()}
    return {
        "oneOf": [_form("rows", rows, more), _form("columns", _columns(_forecast(model)), more)]
    }


def _labels(model: ServedModel) -> dict[str, Any]:
    label = {"type": "number"} if model.classes is None else {"enum": list(model.classes)}
    labels = {"type": "array", "items": label, "minItems": 1}
    rows = {"type": "array", "items": {"$ref": "#/components/schemas/Row"}, "maxItems": MOST_ROWS}
    properties: dict[str, Any] = {"labels": labels, "keys": _keys(), "rows": rows}
    if model.names is not None:
        properties["columns"] = _columns(_row(model))
    return {
        "type": "object",
        "required": ["labels"],
        "properties": properties,
        "additionalProperties": False,
    }
