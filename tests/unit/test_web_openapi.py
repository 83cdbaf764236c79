import inspect
import json
import re
from typing import Any

import msgspec
import pytest

from common import errors
from common.model import OnStop
from common.requests import TaskRequest
from webserver import api, openapi, problems, shapes

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
        GET /agents/{agent}/samples, GET /overview,
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
