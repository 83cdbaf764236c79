"""The OpenAPI document arranged for reading."""

from __future__ import annotations

from webserver import api, examples, openapi, reference

DOCUMENT = openapi.document(api.NOUNS)
READ = reference.read(DOCUMENT)
CALLS = {call.id: call for chapter in READ.chapters for call in chapter.calls}


def test_every_call_of_the_document_is_in_one_chapter() -> None:
    described = {operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()}
    assert set(CALLS) == described == set(examples.EXAMPLES)
    assert sum(len(chapter.calls) for chapter in READ.chapters) == len(described)
    assert all(chapter.description and chapter.calls for chapter in READ.chapters)


def test_a_call_is_told_with_all_that_goes_in() -> None:
    call = CALLS["submit"]
    assert (call.method, call.path, call.access) == ("POST", "/api/v1/tasks", "token")
    assert [(field.name, field.where) for field in call.parameters] == [
        ("Idempotency-Key", "header"),
        ("Prefer", "header"),
    ]
    assert call.body is not None and call.body.required
    by_name = {field.name: field for field in call.body.shape.fields}
    assert by_name["script"].required and by_name["script"].kind == "bytes in base64"
    assert by_name["timeout"].default == "3600" and by_name["timeout"].bounds == "0 … 315360000"
    assert by_name["on_stop"].values == ("finish", "kill")
    assert by_name["fail_count"].bounds == "-1 … 1000000; not 0"
    assert call.example.startswith('curl -sS -X POST "$MUSTER_URL/api/v1/tasks"')


def test_words_of_which_several_may_be_named_are_listed() -> None:
    state = CALLS["list_tasks"].parameters[0]
    assert (state.name, state.values) == ("state", ("waiting", "running", "succeeded", "failed", "cancelled"))


def test_a_list_is_told_down_to_the_fields_of_its_items() -> None:
    [answer] = CALLS["list_tasks"].successes
    assert answer.shape is not None
    names = {field.name for field in answer.shape.fields}
    assert {"items", "next", "items[].id", "items[].reason.code", "items[].waiting[].count"} <= names


def test_large_shapes_within_others_have_a_table_of_their_own() -> None:
    shapes = {shape.name: shape for shape in READ.shapes}
    linked = {
        field.shape
        for call in CALLS.values()
        for answer in call.successes
        if answer.shape
        for field in answer.shape.fields
        if field.shape
    }
    assert linked and linked <= set(shapes)
    assert all(shape.meaning and shape.fields for shape in READ.shapes)


def test_every_field_and_parameter_has_a_meaning() -> None:
    for call in CALLS.values():
        bodies = (call.body.shape.fields if call.body else ()), *(a.shape.fields for a in call.successes if a.shape)
        for field in (*call.parameters, *(field for fields in bodies for field in fields)):
            assert field.meaning, (call.id, field.name)


def test_every_code_of_an_error_is_explained() -> None:
    explained = {code: meaning for _, code, meaning in READ.errors}
    named = {code for call in CALLS.values() for _, codes in call.refusals for code in codes}
    assert set(explained) == named and all(explained.values())
    assert ("409", ("idempotency_key_reused",)) in CALLS["submit"].refusals


def test_who_may_call_is_told() -> None:
    assert (CALLS["healthz"].access, CALLS["list_tasks"].access, CALLS["add_token"].access) == (
        "open",
        "session",
        "token",
    )
