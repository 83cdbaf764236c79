import inspect
import json
import re
from typing import Any

import msgspec
import pytest

from common import errors
from common.model import OnStop
from common.requests import TaskRequest
from webserver import api, meanings, openapi, problems, shapes
from webserver.examples import EXAMPLES, VARIABLES

DOCUMENT: dict[str, Any] = json.loads(json.dumps(openapi.document(api.NOUNS)))
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for each in value.values() for found in references(each)]
    return [found for each in value for found in references(each)] if isinstance(value, list) else []


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= known


def test_operations_have_names_of_their_own_and_a_summary() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(names) == len(set(names))
    assert all(operation["summary"] and operation["tags"] for _, _, operation in OPERATIONS)


def test_every_path_parameter_is_declared() -> None:
    for path, _, operation in OPERATIONS:
        declared = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
        assert declared == re.findall(r"\{(\w+)\}", path)


def test_the_table_of_the_contract_is_covered() -> None:
    wanted = """
        POST /tasks, POST /tasks/preview, GET /tasks, GET /tasks/{task_id}, GET /tasks/{task_id}/script,
        GET /tasks/{task_id}/runs, GET /runs/{run_id}, GET /runs/{run_id}/attempts, GET /tasks/{task_id}/groups,
        GET /runs/{run_id}/output, GET /tasks/{task_id}/events, GET /events, POST /tasks/{task_id}/cancel,
        POST /tasks/{task_id}/pause, POST /tasks/{task_id}/resume, POST /tasks/{task_id}/retry,
        POST /runs/{run_id}/cancel, GET /agents, GET /agents/{agent}, PATCH /agents/{agent},
        POST /agents/{agent}/drain, POST /agents/{agent}/resume, DELETE /agents/{agent}, POST /agent-tokens,
        POST /agents/{agent}/revoke, GET /runs/{run_id}/why, GET /verify, GET /runs/{run_id}/events,
        GET /agents/{agent}/samples, GET /agents/{agent}/runs, GET /overview,
        POST /login-links, GET /tokens, POST /tokens, DELETE /tokens/{token_id}
    """
    there = {f"{method.upper()} {path.removeprefix('/api/v1')}" for path, method, _ in OPERATIONS}
    assert {line.strip() for line in wanted.strip().split(",")} <= there
    assert {"GET /healthz", "GET /readyz", "GET /metrics"} <= there


def test_refusals_are_problem_documents_that_name_their_codes() -> None:
    codes = {
        cls.code
        for module in (errors, problems)
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, errors.MusterError)
    }
    for path, _, operation in OPERATIONS:
        if not path.startswith("/api/v1"):
            continue
        assert {"400", "401", "403", "422", "500", "502", "503"} <= set(operation["responses"])
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"]
                told = re.findall(r"[a-z_]+", response["description"].removeprefix("`code`"))
                assert told and set(told) <= codes


def test_a_task_request_has_all_its_fields_with_a_description() -> None:
    schema = DOCUMENT["components"]["schemas"]["TaskRequest"]
    assert set(schema["properties"]) == {field.name for field in msgspec.structs.fields(TaskRequest)}
    assert all(described.get("description") for described in schema["properties"].values())
    assert schema["additionalProperties"] is False and schema["required"] == ["script"]


@pytest.mark.parametrize(
    ("text", "fits"), [("aGk=", True), ("aGkh", True), ("", False), ("aGk", False), ("a===", False), ("aG k", False)]
)
def test_the_pattern_of_base64_is_right(text: str, fits: bool) -> None:
    script = DOCUMENT["components"]["schemas"]["TaskRequest"]["properties"]["script"]
    assert (bool(re.search(script["pattern"], text)) and len(text) >= script["minLength"]) is fits


def test_query_parameters_carry_their_bounds() -> None:
    [operation] = [each for path, method, each in OPERATIONS if (path, method) == ("/api/v1/tasks", "get")]
    by_name = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    assert by_name["limit"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
    several = re.compile(by_name["state"]["pattern"])
    assert several.match("failed") and several.match("running,waiting")
    assert not any(several.match(text) for text in ("", "gone", "failed,", "failed,gone", "failedrunning"))


def test_shapes_say_which_states_there_are() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["OnStop"]["enum"]) == {member.value for member in OnStop}
    assert set(schemas["Run"]["properties"]) == {field.name for field in msgspec.structs.fields(shapes.Run)}


def test_every_operation_has_one_runnable_example_and_every_example_an_operation() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert set(EXAMPLES) == set(names), "webserver/examples.py holds one example for each operation"
    for path, method, operation in OPERATIONS:
        [sample] = operation["x-codeSamples"]
        address = re.sub(r"\{(\w+)\}", lambda match: f"${match[1].upper()}", path)
        assert f'"$MUSTER_URL{address}' in sample["source"] and sample["lang"] == "Shell"
        assert method == "get" or f" -X {method.upper()} " in sample["source"]
        assert set(re.findall(r"\$([A-Z_]+)", sample["source"])) <= set(VARIABLES)
        example = EXAMPLES[operation["operationId"]]
        assert str(example.status) in operation["responses"]
        assert example.open == (operation.get("security") == [])


def test_parameters_and_bodies_have_examples_that_fit() -> None:
    for path, _, operation in OPERATIONS:
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (path, parameter)
            if parameter["name"] == "cursor":
                continue  # only one that a list answered is good
            value = parameter["examples"]["example"]["value"]
            kind = {str: "string", int: "integer", bool: "boolean"}[type(value)]
            expected = parameter["schema"].get("type", "string")
            assert kind == expected or (kind, expected) == ("integer", "number"), (path, parameter)
            assert re.search(parameter["schema"].get("pattern", ""), str(value))
        if "requestBody" in operation:
            [content] = operation["requestBody"]["content"].values()
            shape = DOCUMENT["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[1]]
            value = content["examples"]["example"]["value"]
            assert set(shape.get("required", ())) <= set(value) <= set(shape["properties"])


def test_every_field_of_every_shape_says_what_it_means() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            assert described.get("description"), (name, field)
        if "enum" in schema:
            assert name in meanings.ENUMERATIONS, name


def test_meanings_are_those_of_fields_that_exist() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for shape, fields in meanings.OF_SHAPE.items():
        assert set(fields) <= set(schemas[shape]["properties"]), shape
    known = {field for schema in schemas.values() for field in schema.get("properties", ())}
    assert set(meanings.COMMON) <= known


def test_reading_is_allowed_to_sessions_too() -> None:
    assert DOCUMENT["components"]["securitySchemes"]["session"]["in"] == "cookie"
    for path, method, operation in OPERATIONS:
        if path.startswith("/api/v1"):
            wanted = [{"token": []}, {"session": []}] if method == "get" else [{"token": []}]
            assert operation.get("security", DOCUMENT["security"]) == wanted, (path, method)


def test_the_cookie_is_named_as_where_the_document_was_asked_for() -> None:
    schemes = openapi.document(api.NOUNS, cookie="muster_session_7440")["components"]["securitySchemes"]
    assert schemes["session"]["name"] == "muster_session_7440"
