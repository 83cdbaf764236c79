"""The OpenAPI document arranged for reading: chapters of calls, fields as flat tables, errors by code. Pure.

Everything shown comes out of the document; nothing is said here that it does not say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import MusterError

Json = Mapping[str, Any]
_INLINE_MOST = 9  # a shape with more fields has a table of its own, unless it is what a list is made of
_PATTERN_MOST = 60
_FORMATS = {"uuid": "UUID", "date-time": "time", "uri": "address"}


@dataclass(frozen=True, slots=True)
class Field:
    """A row of a table: a parameter, or a field at any depth (`items[].name`). `shape`: see the table of that name."""

    name: str
    where: str
    kind: str
    shape: str | None
    required: bool
    default: str | None
    bounds: str
    meaning: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A JSON object: its name, what it is, its fields."""

    name: str
    meaning: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Success:
    """An answer to a call that did what it was asked."""

    status: str
    description: str
    content_type: str
    headers: tuple[tuple[str, str], ...]
    shape: Shape | None


@dataclass(frozen=True, slots=True)
class Body:
    """What a request carries."""

    required: bool
    shape: Shape


@dataclass(frozen=True, slots=True)
class Call:
    """One operation. `access`: `open`, `token`, or `session` (a token or a session)."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    access: str
    parameters: tuple[Field, ...]
    body: Body | None
    successes: tuple[Success, ...]
    refusals: tuple[tuple[str, tuple[str, ...]], ...]  # (status, codes)
    example: str


@dataclass(frozen=True, slots=True)
class Chapter:
    """The calls about one thing."""

    name: str
    description: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """The whole document. `errors`: (status, code, meaning)."""

    about: str
    chapters: tuple[Chapter, ...]
    shapes: tuple[Shape, ...]
    errors: tuple[tuple[str, str, str], ...]


def read(document: Json) -> Reference:
    """The document, arranged."""
    reader = _Reader(document["components"]["schemas"])
    calls = [
        (operation["tags"][0], _call(reader, method, path, operation, document))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    chapters = tuple(
        Chapter(tag["name"], tag["description"], tuple(call for of, call in calls if of == tag["name"]))
        for tag in document["tags"]
    )
    told = {(status, code) for _, call in calls for status, codes in call.refusals for code in codes}
    meanings = _meanings_of_codes()
    errors = tuple((status, code, meanings.get(code, "")) for status, code in sorted(told))
    return Reference(document["info"]["description"], chapters, reader.linked(), errors)


def _call(reader: _Reader, method: str, path: str, operation: Json, document: Json) -> Call:
    security = operation.get("security", document["security"])
    access = "open" if not security else "session" if len(security) > 1 else "token"
    samples = operation.get("x-codeSamples") or [{"source": ""}]
    responses = operation["responses"]
    return Call(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        description=operation.get("description", ""),
        access=access,
        parameters=tuple(reader.parameter(each) for each in operation.get("parameters", ())),
        body=_body(reader, operation.get("requestBody")),
        successes=tuple(_success(reader, status, each) for status, each in responses.items() if status < "400"),
        refusals=tuple((status, _codes(each)) for status, each in sorted(responses.items()) if _codes(each)),
        example=samples[0]["source"],
    )


def _body(reader: _Reader, body: Json | None) -> Body | None:
    if body is None:
        return None
    [content] = body["content"].values()
    shape = reader.shape(_name(content["schema"]))
    return Body(body["required"], shape) if shape.fields else None


def _success(reader: _Reader, status: str, response: Json) -> Success:
    contents: Json = response.get("content", {})
    content_type = next(iter(contents), "")
    schema: Json = contents[content_type]["schema"] if content_type else {}
    shape = reader.shape(_name(schema)) if "$ref" in schema else None
    headers = tuple((name, header["description"]) for name, header in response.get("headers", {}).items())
    return Success(status, response["description"], content_type, headers, shape)


def _codes(response: Json) -> tuple[str, ...]:
    """The codes of errors that a response names."""
    _, marked, codes = response["description"].partition("`code`: ")
    return tuple(codes.split(", ")) if marked else ()


def _meanings_of_codes() -> dict[str, str]:
    found, kinds = {}, [MusterError]
    while kinds:
        kind = kinds.pop()
        found[kind.code] = (kind.__doc__ or "").strip().splitlines()[0]
        kinds += kind.__subclasses__()
    return found


def _name(schema: Json) -> str:
    return str(schema["$ref"]).rsplit("/", 1)[1]


class _Reader:
    """Reads schemas, and remembers which ones need a table of their own."""

    def __init__(self, schemas: Json) -> None:
        self._schemas = schemas
        self._linked: dict[str, None] = {}

    def linked(self) -> tuple[Shape, ...]:
        """The shapes that tables refer to, those that these refer to included."""
        drawn: dict[str, Shape] = {}
        while missing := [name for name in self._linked if name not in drawn]:
            drawn.update({name: self.shape(name) for name in missing})
        return tuple(drawn[name] for name in sorted(drawn))

    def shape(self, name: str) -> Shape:
        """The shape of this name as one flat table."""
        schema = self._schemas[name]
        return Shape(name, " ".join(schema.get("description", "").split()), tuple(self._fields(schema, "")))

    def parameter(self, parameter: Json) -> Field:
        """A parameter as a row."""
        schema = {**parameter["schema"], "description": parameter["description"]}
        return self._row(parameter["name"], schema, where=parameter["in"], required=parameter["required"])

    def _fields(self, schema: Json, prefix: str) -> Iterator[Field]:
        required = schema.get("required", ())
        for name, described in schema.get("properties", {}).items():
            shape, mark = self._object_in(described)
            is_page = not prefix and name == "items"
            inline = shape is not None and (is_page or len(self._schemas[shape]["properties"]) <= _INLINE_MOST)
            yield self._row(prefix + name, described, required=name in required, linked=None if inline else shape)
            if shape is not None and inline:
                yield from self._fields(self._schemas[shape], f"{prefix}{name}{mark}.")

    def _object_in(self, schema: Json) -> tuple[str | None, str]:
        """The object that a field is, or is a list of, and the mark of a list."""
        for branch in schema.get("anyOf", (schema,)):
            inner, mark = (branch["items"], "[]") if branch.get("type") == "array" else (branch, "")
            if "$ref" in inner and "properties" in self._schemas[_name(inner)]:
                return _name(inner), mark
        return None, ""

    def _row(self, name: str, schema: Json, *, required: bool, where: str = "", linked: str | None = None) -> Field:
        if linked is not None:
            self._linked[linked] = None
        branches = [self._resolved(branch) for branch in schema.get("anyOf", (schema,))]
        values = [str(value) for branch in branches for value in branch.get("enum", ())] or _listed(schema)
        default = schema.get("default")
        meaning = schema.get("description") or next(
            (each["description"] for each in branches if "description" in each), ""
        )
        return Field(
            name=name,
            where=where,
            kind=" or ".join(dict.fromkeys(_kind(branch) for branch in branches)),
            shape=linked,
            required=required,
            default=None if "default" not in schema or default is None else _json_word(default),
            bounds="; ".join(bound for branch in branches for bound in _bounds(branch)),
            meaning=" ".join(meaning.split()),
            values=tuple(values),
        )

    def _resolved(self, schema: Json) -> Json:
        return self._schemas[_name(schema)] if "$ref" in schema else schema


def _kind(schema: Json) -> str:
    kind = str(schema.get("type", "string"))
    if kind == "array":
        inner = schema.get("items") or {}
        return f"list of {'objects' if '$ref' in inner else _plural(inner)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_plural(schema['additionalProperties'])}"
    if schema.get("contentEncoding") == "base64":
        return "bytes in base64"
    return _FORMATS.get(schema.get("format", ""), "text") if kind == "string" else kind


def _listed(schema: Json) -> list[str]:
    """The words of which a text may name several, separated by commas."""
    several = "(?:," in schema.get("pattern", "")
    return str(schema["examples"][0]).split(",") if several and "examples" in schema else []


def _plural(schema: Json) -> str:
    kinds = dict.fromkeys(branch.get("type", "any") for branch in schema.get("anyOf", (schema,)))
    if kinds == {"array": None}:
        return f"lists of {_plural(schema['items'])}"
    words = {"string": "texts", "integer": "integers", "number": "numbers", "any": "any values", "null": "null"}
    return " or ".join(words.get(kind, kind) for kind in kinds)


def _bounds(schema: Json) -> Iterator[str]:
    yield from _range(schema, "minimum", "maximum", "")
    if "contentEncoding" not in schema:
        yield from _range(schema, "minLength", "maxLength", " characters")
    yield from _range(schema, "minItems", "maxItems", " entries")
    yield from _range(schema, "minProperties", "maxProperties", " entries")
    if "not" in schema and "const" in schema["not"]:
        yield f"not {schema['not']['const']}"
    pattern = schema.get("pattern", "")
    plain = "\\u0000" not in pattern  # that text holds no NUL goes without saying
    if pattern and plain and not schema.keys() & {"format", "contentEncoding"} and len(pattern) <= _PATTERN_MOST:
        yield f"`{pattern}`"


def _range(schema: Json, least: str, most: str, unit: str) -> Iterator[str]:
    ends = schema.get(least), schema.get(most)
    low, high = (int(end) if isinstance(end, float) and end.is_integer() else end for end in ends)
    if low is not None and high is not None:
        yield f"{low} … {high}{unit}" if low != high else f"{low}{unit}"
    elif low is not None:
        yield "not empty" if unit and low == 1 else f"at least {low}{unit}"
    elif high is not None:
        yield f"at most {high}{unit}"


def _json_word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else str(value)
