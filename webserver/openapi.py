"""The OpenAPI 3.1 document of the REST API, drawn from the operations' declarations and the shapes of their answers.

Nothing in it is written by hand twice: what `webserver.rest` accepts and `webserver.wording` answers is what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from common import requests
from common.errors import (
    AnswerTooLarge,
    Busy,
    Forbidden,
    InvalidRequest,
    Malformed,
    MusterError,
    ProtocolError,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedContentType,
)
from common.version import VERSION
from webserver import examples, meanings, problems, shapes
from webserver.rest import PREFIX, Answer, Header, Nothing, Noun, Operation

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_ABOUT = (
    "Runs scripts on many hosts at once. Times are RFC 3339 in UTC, durations seconds. What is not described here (a "
    "field, a parameter, a method) is refused, never ignored. Errors are problem documents (RFC 9457) with a stable "
    "`code`. Lists come in pages: `next` of one page is the `cursor` of the following one, and null on the last. "
    "HEAD is answered wherever GET is."
)
_HEALTH = "Whether it is well, for machines that ask. No token is needed."
_DESCRIBED = {
    "agent": "an id, or its beginning (6 characters or more), or a name",
    "": "an id, or its beginning (6 characters or more)",
}
_TEXT_HEADER: Json = {"schema": {"type": "string"}}
_REFUSAL_HEADERS: Mapping[int, Json] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`", **_TEXT_HEADER}},
    **{status: {"Retry-After": {"description": "seconds", **_TEXT_HEADER}} for status in problems.RETRY_AFTER_S},
}
# What any operation may answer, whatever it is about.
_ALWAYS: tuple[type[MusterError], ...] = (
    Malformed,
    Unauthorized,
    Forbidden,
    InvalidRequest,
    MusterError,
    AnswerTooLarge,
    ProtocolError,
    Unavailable,
    Busy,
    problems.BadHost,
)
_WITH_BODY: tuple[type[MusterError], ...] = (TooLarge, UnsupportedContentType, problems.BrokenBody)
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_TEXT = "^[^\\u0000]*$"
# What `common.requests.check` demands beyond types, in the words of JSON Schema.
_TASK_LIMITS: dict[str, Json] = {
    "script": {"pattern": _BASE64, "minLength": 4, "description": "the script's bytes; delivered as they are"},
    "interpreter": {"description": "the script's path is appended, then `args`; default: the shebang, else /bin/sh"},
    "args": {"description": "arguments for the script"},
    "env": {"description": "variables for the script, beside a small clean environment"},
    "cwd": {"description": "absolute path to run in"},
    "name": {"description": "for people; default: the first line of the script"},
    "timeout": {"minimum": 0, "maximum": requests.LONGEST_S, "description": "seconds of one attempt; 0: none"},
    "parallel": {"minimum": 0, "maximum": 1_000_000, "description": "runs held at once over the fleet; 0: no bound"},
    "fail_count": {
        "minimum": -1,
        "maximum": 1_000_000,
        "not": {"const": 0},
        "description": "start no new runs once so many have failed; -1: no bound",
    },
    "fail_rate": {"description": "stop once failed ÷ targets exceeds this (0…1)"},
    "on_stop": {"description": "runs under way when the stop rule fires: go on, or are killed"},
    "targets": {"description": "agents by id, name or unambiguous beginning of an id"},
    "count": {"description": "any so many agents, of `targets` if given"},
    "queue": {
        "pattern": "^(?!-)[A-Za-z0-9+/;.$_()-]{1,200}$",
        "description": "for `count`: only agents that serve this queue",
    },
    "priority": {"minimum": 0, "maximum": requests.PRIORITY_MOST, "description": "0 is the most urgent"},
    "expires": {"minimum": 0, "maximum": requests.LONGEST_S, "description": "seconds a run may wait; 0: for ever"},
    "lost_after": {
        "minimum": 0,
        "maximum": requests.LONGEST_S,
        "description": "seconds until a begun run of a silent agent counts as lost; 0: wait for the host",
    },
    "output_limit": {"description": "bytes of output kept; of more the middle becomes a gap"},
}
_NESTED_LIMITS: dict[str, Json] = {
    "name": {"minLength": 1, "maxLength": requests.NAME_MOST, "pattern": "^[^\\u0000]*\\S[^\\u0000]*$"},
    "cwd": {"pattern": "^/[^\\u0000]*$"},
    "fail_rate": {"minimum": 0, "maximum": 1},
    "count": {"minimum": 1, "maximum": 10_000},
    "targets": {"minItems": 1, "maxItems": 10_000},
    "interpreter": {"minItems": 1},
    "output_limit": {"minimum": 1024, "maximum": 1 << 40},
}
_ITEM_LIMITS: dict[str, Json] = {
    "targets": {"minLength": 1, "maxLength": requests.NAME_MOST, "pattern": "^[^*]*[^*\\s][^*]*$"},
    "interpreter": {"pattern": _TEXT},
    "args": {"pattern": _TEXT},
}


def document(nouns: Iterable[Noun], *, cookie: str = "muster_session") -> Json:
    """The whole document. `cookie`: what the cookie of a session is called where it is asked for."""
    nouns = list(nouns)
    operations = [operation for noun in nouns for operation in noun.operations]
    shapes_used = _shapes(operations)
    _, components = msgspec.json.schema_components(shapes_used, ref_template=_REF)
    _limit_task_request(components["TaskRequest"])
    _limit_labels(components["AgentChanges"])
    for name, schema in components.items():
        _describe_fields(name, schema)
    paths: Json = {}
    for noun in nouns:
        for operation in noun.operations:
            paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = _operation(noun, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "muster",
            "version": VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "externalDocs": {"url": f"{PREFIX}/docs", "description": "this document as a page"},
        "security": [{"token": []}],
        "tags": [
            *({"name": noun.name, "description": noun.description} for noun in nouns),
            {"name": "health", "description": _HEALTH},
        ],
        "paths": {**paths, **_open_paths()},
        "components": {"schemas": components, "securitySchemes": _security_schemes(cookie)},
    }


def _security_schemes(cookie: str) -> Json:
    about = "the session of a browser that is logged in: it may read, and changes things through the pages only"
    return {
        "token": {"type": "http", "scheme": "bearer", "description": "an API token"},
        "session": {"type": "apiKey", "in": "cookie", "name": cookie, "description": about},
    }


def _shapes(operations: list[Operation]) -> list[type[msgspec.Struct]]:
    found: dict[type[msgspec.Struct], None] = {shapes.Problem: None, shapes.Health: None, shapes.Readiness: None}
    for operation in operations:
        if operation.body is not None:
            found[operation.body] = None
        for answer in operation.answers.values():
            if answer.shape is not None:
                found[answer.shape] = None
    return list(found)


def _operation(noun: Noun, operation: Operation) -> Json:
    name = operation.fn.__name__
    summary, _, description = (operation.fn.__doc__ or "").strip().partition("\n")
    drawn: Json = {"operationId": name, "tags": [noun.name], "summary": summary.rstrip("."), "responses": {}}
    if operation.method == "GET":
        drawn["security"] = [{"token": []}, {"session": []}]
    if description.strip():
        drawn["description"] = " ".join(description.split())
    parameters = [*_path_parameters(operation.path), *_query_parameters(operation), *_headers(operation.headers)]
    if parameters:
        drawn["parameters"] = [_with_example(name, parameter) for parameter in parameters]
    if operation.body is not None:
        drawn["requestBody"] = _body(operation)
    _show_call(drawn, operation.method, PREFIX + operation.path)
    for status, answer in operation.answers.items():
        drawn["responses"][str(status)] = _answer(answer)
    refused = (*_ALWAYS, *operation.refuses, *(_WITH_BODY if operation.body is not None else ()))
    drawn["responses"].update(_refusals(refused))
    return drawn


def _body(operation: Operation) -> Json:
    assert operation.body is not None
    content: Json = {"schema": {"$ref": _REF.format(name=operation.body.__name__)}}
    example = examples.EXAMPLES.get(operation.fn.__name__)
    if example is not None and example.body is not None:
        content["examples"] = {"example": {"value": dict(example.body)}}
    drawn: Json = {"required": operation.body_required, "content": {"application/json": content}}
    if operation.body is not Nothing and operation.body.__doc__:
        drawn["description"] = " ".join(operation.body.__doc__.split())
    return drawn


def _with_example(operation_id: str, parameter: Json) -> Json:
    value = examples.of_parameter(operation_id, parameter["name"])
    return parameter if value is None else {**parameter, "examples": {"example": {"value": value}}}


def _show_call(drawn: Json, method: str, path: str) -> None:
    """Put in the example as a command, under the name that readers of such documents know."""
    example = examples.EXAMPLES.get(drawn["operationId"])
    if example is not None:
        drawn["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": examples.curl(method, path, example)}]


def _path_parameters(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _DESCRIBED.get(name, _DESCRIBED[""]),
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        }
        for name in _PATH_PARAMETER.findall(path)
    ]


def _query_parameters(operation: Operation) -> list[Json]:
    _, components = msgspec.json.schema_components([operation.query], ref_template=_REF)
    schema = components[operation.query.__name__]
    parameters = []
    for name, described in schema.get("properties", {}).items():
        own = _inlined(described, components)
        parameter = {"name": name, "in": "query", "required": False, "schema": own}
        if "description" in own:
            parameter["description"] = own.pop("description")
        parameters.append(parameter)
    return parameters


def _inlined(schema: Json, components: Mapping[str, Json]) -> Json:
    """The schema with a reference at its top replaced by what it refers to."""
    if "$ref" not in schema:
        return dict(schema)
    named = components[schema["$ref"].rsplit("/", 1)[1]]
    kept = {key: value for key, value in named.items() if key not in ("title", "description")}
    return {**kept, **{key: value for key, value in schema.items() if key != "$ref"}}


def _headers(headers: Iterable[Header]) -> list[Json]:
    return [
        {
            "name": header.name,
            "in": "header",
            "required": False,
            "description": header.description,
            "schema": {"type": "string", **({"pattern": header.pattern} if header.pattern else {})},
        }
        for header in headers
    ]


def _answer(answer: Answer) -> Json:
    drawn: Json = {"description": answer.description}
    if answer.headers:
        drawn["headers"] = {
            name: {"description": about, "schema": {"type": "string"}} for name, about in answer.headers.items()
        }
    if answer.shape is not None:
        schema: Json = {"$ref": _REF.format(name=answer.shape.__name__)}
        drawn["content"] = {answer.content_type: {"schema": schema}}
    elif answer.content_type:
        drawn["content"] = {answer.content_type: {"schema": {"type": "string"}}}
    return drawn


def _refusals(errors: Iterable[type[MusterError]]) -> Json:
    """One response for each status, naming the codes it may carry."""
    by_status: dict[int, dict[str, None]] = {}
    for error in errors:
        by_status.setdefault(error.status, {})[error.code] = None
    content = {problems.CONTENT_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}
    drawn: Json = {}
    for status in sorted(by_status):
        drawn[str(status)] = {"description": f"`code`: {', '.join(by_status[status])}", "content": content}
        headers = _REFUSAL_HEADERS.get(status)
        if headers is not None:
            drawn[str(status)]["headers"] = headers
    return drawn


def _open_paths() -> Json:
    """What needs no token and stands outside the prefix."""
    problem = {problems.CONTENT_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}

    def path(name: str, summary: str, content: Json, *, unready: bool = False) -> Json:
        responses: Json = {"200": {"description": "Yes.", "content": content}}
        if unready:
            responses["503"] = {
                "description": "No; `problems` says why.",
                "content": problem,
                "headers": _REFUSAL_HEADERS[503],
            }
        drawn: Json = {"operationId": name, "tags": ["health"], "summary": summary, "security": []}
        drawn["responses"] = responses
        _show_call(drawn, "GET", f"/{name}")
        return {"get": drawn}

    def json(name: str) -> Json:
        return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}

    return {
        "/healthz": path("healthz", "Whether the webserver answers", json("Health")),
        "/readyz": path("readyz", "Whether work can be accepted", json("Readiness"), unready=True),
        "/metrics": path("metrics", "Prometheus text", {"text/plain": {"schema": {"type": "string"}}}),
    }


def _describe_fields(shape: str, schema: Json) -> None:
    """Have every field say what it means, beside its type and not inside of it."""
    if shape in meanings.ENUMERATIONS:
        schema["description"] = meanings.ENUMERATIONS[shape]
    for name, described in schema.get("properties", {}).items():
        inner = [branch.pop("description", "") for branch in described.get("anyOf", ())]
        meaning = described.get("description") or meanings.of(shape, name) or next(filter(None, inner), "")
        if meaning:
            described["description"] = meaning


def _limit_labels(schema: Json) -> None:
    """Put in what the master demands of labels."""
    for branch in schema["properties"]["labels"]["anyOf"]:
        if branch["type"] == "object":
            text = {"type": "string", "maxLength": requests.LABEL_MOST}
            branch["maxProperties"] = requests.LABELS_MOST
            branch["propertyNames"] = {"minLength": 1, "maxLength": requests.LABEL_MOST}
            branch["additionalProperties"] = text


def _limit_task_request(schema: Json) -> None:
    """Put in what the request's check demands beyond its types."""
    for name, described in schema["properties"].items():
        described.update(_TASK_LIMITS.get(name, {}))
        branches = described.get("anyOf", [described])
        for branch in branches:
            if branch.get("type") == "null":
                continue
            branch.update(_NESTED_LIMITS.get(name, {}))
            if name in _ITEM_LIMITS and "items" in branch:
                branch["items"].update(_ITEM_LIMITS[name])
    env = schema["properties"]["env"]
    env["propertyNames"] = {"pattern": "^(?!MUSTER_)[A-Za-z_][A-Za-z0-9_]*$"}
    env["additionalProperties"] = {"type": "string", "pattern": _TEXT}
    schema["anyOf"] = [
        {"required": ["targets"], "properties": {"targets": {"type": "array"}}},
        {"required": ["count"], "properties": {"count": {"type": "integer"}}},
    ]
