"""Every line of the REST table before a real master, as `curl` would see it."""

from __future__ import annotations

import time
from typing import Any

import gevent
import msgspec
import pytest

from tests.web.conftest import Stack, request, script
from webserver import shapes


def convert(value: Any, shape: type[msgspec.Struct]) -> Any:
    """The answer has the promised shape: all fields, no others."""
    names = {field.name for field in msgspec.structs.fields(shape)}
    assert set(value) == names, set(value) ^ names
    return msgspec.convert(value, shape)


def submitted(stack: Stack, **fields: Any) -> dict[str, Any]:
    answer = stack.http.post("tasks", request(**fields))
    assert answer.status == 201, answer.body
    task: dict[str, Any] = answer.json
    return task


def finished(stack: Stack, content: bytes = b"hello\n", *, exit_code: int = 0) -> tuple[dict[str, Any], str]:
    """A task that ran on `one`, and its run's id."""
    task = submitted(stack)
    run = stack.one.take()
    if content:
        stack.one.write(run, content)
    stack.one.end(run, exit_code=exit_code)
    return task, run.run_id


def test_a_task_is_stored_run_and_answered(stack: Stack) -> None:
    body = request("#!/bin/sh\necho hi\n", name="greet", timeout=60, args=["a"], env={"K": "v"}, priority=5)
    answer = stack.http.post("tasks", body)
    assert answer.status == 201
    task = answer.json
    convert(task, shapes.Task)
    assert answer.headers["Location"] == f"/api/v1/tasks/{task['id']}"
    assert (task["name"], task["timeout"], task["args"], task["env"], task["priority"]) == (
        "greet",
        60,
        ["a"],
        {"K": "v"},
        5,
    )
    assert (task["state"], task["total"], task["targets"], task["submitted_by"]) == ("waiting", 1, ["one"], "admin")
    assert task["created_at"].endswith("Z") and len(task["created_at"]) == 24
    assert "script" not in task
    run = stack.one.take()
    stack.one.end(run)
    again = stack.http.get(answer.headers["Location"]).json
    assert (again["state"], again["counts"]) == ("succeeded", {"succeeded": 1})
    convert(again, shapes.Task)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00#!\r\n", b"x", bytes(range(256)) * 400])
def test_a_script_comes_back_byte_for_byte(stack: Stack, content: bytes) -> None:
    task = submitted(stack, content=content, priority=9)
    answer = stack.http.get(f"tasks/{task['id']}/script")
    assert (answer.status, answer.body) == (200, content)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert stack.http.post(f"tasks/{task['id']}/cancel").status == 202


def test_prefer_wait_answers_when_the_task_is_final(stack: Stack) -> None:
    work = gevent.spawn(lambda: stack.one.end(stack.one.take()))
    answer = stack.http.post("tasks", request(), prefer="respond-async, wait=30")
    assert (answer.status, answer.json["state"]) == (201, "succeeded")
    assert answer.headers["Preference-Applied"] == "wait=30"
    work.get()


def test_prefer_wait_answers_after_its_time_too(stack: Stack) -> None:
    began = time.monotonic()
    answer = stack.http.post("tasks", request(), prefer="wait=0.3")
    assert (answer.status, answer.json["state"]) == (201, "waiting")
    assert 0.2 < time.monotonic() - began < 10
    stack.one.end(stack.one.take())


def test_get_wait_answers_when_the_task_is_final(stack: Stack) -> None:
    task = submitted(stack)
    waiting = gevent.spawn(stack.http.get, f"tasks/{task['id']}?wait=30")
    stack.one.end(stack.one.take(), exit_code=3)
    assert waiting.get().json["state"] == "failed"
    assert stack.http.get(f"tasks/{task['id']}?wait=0.1").json["state"] == "failed"


def test_an_idempotency_key_makes_a_repeat_harmless(stack: Stack) -> None:
    first = stack.http.post("tasks", request("echo 1"), idempotency_key="k-1")
    reordered = dict(reversed(request("echo 1").items()))
    second = stack.http.post("tasks", reordered, idempotency_key="k-1")
    spelled_out = stack.http.post("tasks", request("echo 1", timeout=3600.0, args=[]), idempotency_key="k-1")
    assert [first.status, second.status, spelled_out.status] == [201, 200, 200]
    assert first.json["id"] == second.json["id"] == spelled_out.json["id"]
    before = stack.count_tasks()
    stack.http.post("tasks", request("echo 2"), idempotency_key="k-1").refused(409, "idempotency_key_reused")
    stack.http.post("tasks", request("echo 2"), idempotency_key="k 1").refused(
        422, "invalid_request", "Idempotency-Key"
    )
    stack.http.post("tasks", request("echo 2"), idempotency_key="x" * 201).refused(422, "invalid_request")
    assert stack.count_tasks() == before
    stack.http.post(f"tasks/{first.json['id']}/cancel")


def test_preview_stores_nothing(stack: Stack) -> None:
    before = stack.count_tasks()
    answer = stack.http.post("tasks/preview", request(targets=["one", "two"]))
    assert answer.status == 200
    preview = convert(answer.json, shapes.Preview)
    assert [target.name for target in preview.targets] == ["one", "two"] and preview.plan == "2 hosts"
    assert (preview.summary.total, preview.summary.able, preview.summary.addressed) == (2, 2, True)
    convert(answer.json["targets"][0], shapes.Target)
    stack.http.post("tasks/preview", request(targets=["nobody"])).refused(422, "invalid_request", "targets[0]")
    assert stack.count_tasks() == before


def test_tasks_are_listed_filtered_and_paged(stack: Stack) -> None:
    made = [submitted(stack, name=f"listed-{number}", targets=["two"])["id"] for number in range(3)]
    page = stack.http.get("tasks?limit=2&name=LISTED-").json
    assert [task["id"] for task in page["items"]] == [made[2], made[1]]
    rest = stack.http.get(f"tasks?limit=2&name=LISTED-&cursor={page['next']}").json
    assert ([task["id"] for task in rest["items"]], rest["next"]) == ([made[0]], None)
    assert {task["id"] for task in stack.http.get("tasks?agent=two&state=waiting&limit=500").json["items"]} >= set(made)
    assert not stack.http.get("tasks?agent=one&name=listed").json["items"]
    since = stack.http.get(f"tasks/{made[0]}").json["created_at"]
    found = stack.http.get(f"tasks?since={since}&limit=500").json["items"]
    assert made[0] in [task["id"] for task in found]
    assert not stack.http.get("tasks?since=2100-01-01T00:00:00Z").json["items"]
    for task_id in made:
        assert stack.http.post(f"tasks/{task_id}/cancel").json["state"] == "cancelled"


def test_a_bad_cursor_is_refused(stack: Stack) -> None:
    for cursor in ("nonsense", "1", "%00", "AAAAAA", "x" * 500):
        stack.http.get(f"tasks?cursor={cursor}").refused(422, "invalid_request")


def test_runs_attempts_groups_and_reasons(stack: Stack) -> None:
    task = submitted(stack, targets=["one", "two"])
    listed = stack.http.get(f"tasks/{task['id']}/runs").json["items"]
    for run in listed:
        convert(run, shapes.Run)
    assert {run["agent"]["name"] for run in listed} == {"one", "two"}
    why = stack.http.get(f"runs/{listed[0]['id']}/why").json
    convert(why, shapes.Explanation)
    assert why["verdicts"] and why["verdicts"][0]["text"]
    for hand, code in ((stack.one, 0), (stack.two, 7)):
        run = hand.take()
        hand.write(run, b"x")
        hand.end(run, exit_code=code)
    failed = stack.http.get(f"tasks/{task['id']}/runs?state=failed").json["items"]
    assert [(run["agent"]["name"], run["exit_code"], run["outcome"]) for run in failed] == [("two", 7, "exit")]
    assert stack.http.get(f"runs/{failed[0]['id']}").json == failed[0]
    [attempt] = stack.http.get(f"runs/{failed[0]['id']}/attempts").json["items"]
    convert(attempt, shapes.Attempt)
    groups = stack.http.get(f"tasks/{task['id']}/groups").json["items"]
    for group in groups:
        convert(group, shapes.Group)
    assert {(group["state"], group["exit_code"], group["count"], tuple(group["names"])) for group in groups} == {
        ("succeeded", 0, 1, ("one",)),
        ("failed", 7, 1, ("two",)),
    }


def test_ids_may_be_shortened(stack: Stack) -> None:
    task, run_id = finished(stack)
    assert stack.http.get(f"tasks/{task['id'][:35]}").json["id"] == task["id"]
    assert stack.http.get(f"runs/{run_id[:35]}").json["id"] == run_id
    stack.http.get(f"tasks/{task['id'][:6]}").refused(409, "conflict")


@pytest.mark.parametrize(
    "path",
    ["tasks/00000000-0000-7000-8000-000000000000", "tasks/x", "tasks/%00", "runs/nothing", "runs/nothing/output",
     "runs/nothing/attempts", "runs/nothing/why", "tasks/nothing/runs", "tasks/nothing/groups", "tasks/nothing/script",
     "tasks/nothing/events", "agents/nobody", "tasks/", "nothing", "/nothing", "tasks/é"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(stack: Stack, path: str) -> None:
    stack.http.get(path.replace("é", "%C3%A9")).refused(404, "not_found")


def test_output_is_exactly_what_was_written(stack: Stack) -> None:
    task = submitted(stack)
    run = stack.one.take()
    stack.one.write(run, b"out \xff\xfe\n")
    stack.one.write(run, b"err\r\n", stream=2)
    stack.one.skip(run, 100)
    stack.one.write(run, b"end")
    path = f"runs/{run.run_id}/output"
    answer = stack.http.get(path)
    assert (answer.status, answer.body) == (200, b"out \xff\xfe\nerr\r\nend")
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    named = {name: answer.headers[f"X-Output-{name}"] for name in ("Size", "Gaps", "Attempt", "Ended", "Next")}
    assert named == {"Size": "115", "Gaps": "12+100", "Attempt": "1", "Ended": "false", "Next": "115"}
    assert stack.http.get(f"{path}?stream=stderr").body == b"err\r\n"
    assert stack.http.get(f"{path}?stream=stdout").body == b"out \xff\xfe\nend"
    part = stack.http.get(f"{path}?offset=4&limit=5")
    assert (part.body, part.headers["X-Output-Next"]) == (b"\xff\xfe\ner", "9")
    assert stack.http.get(f"{path}?offset=9&limit=4").body == b"r\r\ne"
    assert stack.http.get(f"{path}?offset=500").body == b""
    head = stack.http.call("HEAD", path)
    assert (head.status, head.body, head.headers["X-Output-Size"]) == (200, b"", "115")
    stack.one.end(run, gaps=[(12, 100)])
    over = stack.http.get(path)
    assert (over.headers["X-Output-Ended"], over.body) == ("true", answer.body)
    assert stack.http.get(f"tasks/{task['id']}/runs").json["items"][0]["output_gaps"] == [[12, 100]]


def test_large_output_is_sent_in_pieces(stack: Stack) -> None:
    submitted(stack)
    run = stack.one.take()
    block = bytes(range(256)) * 1024
    for number in range(12):
        stack.one.write(run, block, stream=1 + number % 2)
    stack.one.end(run)
    answer = stack.http.get(f"runs/{run.run_id}/output")
    assert answer.body == block * 12
    assert answer.headers["Transfer-Encoding"] == "chunked" and answer.headers["X-Output-Next"] is None
    assert stack.http.get(f"runs/{run.run_id}/output?stream=stderr").body == block * 6
    assert stack.http.get(f"runs/{run.run_id}/output?offset=5&limit=2000000").body == (block * 12)[5:2000005]
    part = stack.http.get(f"runs/{run.run_id}/output?stream=stderr&offset=5&limit=300000")
    assert part.body == (block * 6)[:300_000]
    assert part.headers["X-Output-Next"] == str(3 * len(block) + 300_000 - len(block))
    head = stack.http.call("HEAD", f"runs/{run.run_id}/output")
    assert head.body == b"" and head.headers["Transfer-Encoding"] is None


@pytest.mark.parametrize(
    "query", ["offset=-1", "offset=x", "limit=0", "stream=stdin", "attempt=0", "attempt=x", "tail=5"]
)
def test_a_bad_output_query_is_refused(stack: Stack, query: str) -> None:
    _, run_id = finished(stack, b"")
    stack.http.get(f"runs/{run_id}/output?{query}").refused(422, "invalid_request", query.partition("=")[0])


def test_cancel_pause_resume(stack: Stack) -> None:
    task = submitted(stack)
    path = f"tasks/{task['id']}"
    paused = stack.http.post(f"{path}/pause")
    assert (paused.status, paused.json["paused"]) == (202, True)
    resumed = stack.http.post(f"{path}/resume", {})
    assert (resumed.status, resumed.json["paused"]) == (202, False)
    cancelled = stack.http.post(f"{path}/cancel")
    assert (cancelled.status, cancelled.json["state"], cancelled.json["reason"]["code"]) == (
        202,
        "cancelled",
        "cancelled",
    )
    assert stack.http.post(f"{path}/cancel").status == 202
    stack.http.post(f"{path}/pause").refused(409, "conflict")
    stack.http.post(f"{path}/cancel", {"force": True}).refused(422, "invalid_request", "force")


def test_one_run_can_be_cancelled(stack: Stack) -> None:
    task = submitted(stack, targets=["one", "two"])
    runs = stack.http.get(f"tasks/{task['id']}/runs").json["items"]
    answer = stack.http.post(f"runs/{runs[0]['id']}/cancel")
    assert (answer.status, answer.json["state"]) == (202, "cancelled")
    convert(answer.json, shapes.Run)
    assert stack.http.get(f"tasks/{task['id']}").json["state"] == "waiting"
    stack.http.post(f"tasks/{task['id']}/cancel")


def test_retry_reopens_a_final_task(stack: Stack) -> None:
    task, run_id = finished(stack, b"first", exit_code=1)
    path = f"tasks/{task['id']}/retry"
    stack.http.post(path, {"only": "some"}).refused(422, "invalid_request", "only")
    answer = stack.http.post(path, {"only": "failed"})
    assert answer.status == 202
    stack.http.post(path).refused(409, "conflict")
    run = stack.one.take()
    assert (run.run_id, run.attempt) == (run_id, 2)
    stack.one.write(run, b"second")
    stack.one.end(run)
    assert stack.http.get(f"tasks/{task['id']}").json["state"] == "succeeded"
    assert stack.http.get(f"runs/{run_id}/output").body == b"second"
    assert stack.http.get(f"runs/{run_id}/output?attempt=1").body == b"first"
    attempts = stack.http.get(f"runs/{run_id}/attempts").json["items"]
    assert [(each["attempt"], each["exit_code"]) for each in attempts] == [(1, 1), (2, 0)]


def test_agents(stack: Stack) -> None:
    listed = stack.http.get("agents").json["items"]
    assert [agent["name"] for agent in listed] == ["one", "two"]
    for agent in listed:
        convert(agent, shapes.Agent)
    page = stack.http.get("agents?limit=1").json
    assert stack.http.get(f"agents?limit=1&cursor={page['next']}").json["items"][0]["name"] == "two"
    one = stack.http.get("agents/one").json
    assert stack.http.get(f"agents/{one['id']}").json["id"] == one["id"] == stack.one.id
    assert one["facts"]["cpus"] == 2 and one["state"] == "online"
    changed = stack.http.call("PATCH", "agents/one", {"labels": {"env": "prod"}, "slots": 3})
    assert (changed.status, changed.json["labels"], changed.json["slots"]) == (200, {"env": "prod"}, 3)
    assert stack.http.call("PATCH", "agents/one", {"slots": None}).json["slots"] == 8
    assert stack.http.post("agents/two/drain").json["state"] == "draining"
    assert stack.http.post("agents/two/resume").json["state"] == "online"
    stack.http.call("DELETE", "agents/one").refused(409, "conflict")


@pytest.mark.parametrize(
    ("body", "field"),
    [({"slots": 0}, "slots"), ({"slots": "x"}, "slots"), ({"labels": {"a": 1}}, None),
     ({"name": "x"}, "name"), ({"slots": 10**30}, "slots"), ({"labels": []}, "labels")],
)  # fmt: skip
def test_a_bad_change_of_an_agent_is_refused(stack: Stack, body: Any, field: str | None) -> None:
    stack.http.call("PATCH", "agents/one", body).refused(422, "invalid_request", *([field] if field else []))


def test_an_agent_token_is_made(stack: Stack) -> None:
    answer = stack.http.post("agent-tokens")
    assert answer.status == 201
    token = convert(answer.json, shapes.AgentToken)
    assert token.token.startswith("muster1.") and token.token in token.line


def test_verify_finds_nothing(stack: Stack) -> None:
    answer = stack.http.get("verify")
    assert (answer.status, answer.json["findings"]) == (200, [])
    convert(answer.json, shapes.Verification)


def test_health_needs_no_token(stack: Stack) -> None:
    stack.http.token, token = None, stack.http.token
    try:
        assert stack.http.get("/healthz").json["status"] == "ok"
        ready = stack.http.get("/readyz")
        assert (ready.status, ready.json["ready"], ready.json["problems"]) == (200, True, [])
        metrics = stack.http.get("/metrics")
        assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"\nmuster_runs{" in metrics.body and b"\nmuster_web_requests_total{" in metrics.body
        assert stack.http.get("/api/v1/openapi.json").status == 200
    finally:
        stack.http.token = token


TOO_LONG = "x" * (128 * 1024)
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"script": ""}, 422, "script"),
    ({"script": "====", "targets": ["one"]}, 422, "script"),
    ({"targets": ["one"]}, 422, "script"),
    ({"script": script()}, 422, "targets"),
    (request(targets=[]), 422, "targets"),
    (request(targets=[""]), 422, "targets[0]"),
    (request(targets=["*"]), 422, "targets[0]"),
    (request(targets=["one", "nobody"]), 422, "targets[1]"),
    (request(count=0), 422, "count"),
    (request(count=3), 422, "count"),
    (request(count=1, queue="-"), 422, "queue"),
    (request(fail_count=0), 422, "fail_count"),
    (request(fail_count=-2), 422, "fail_count"),
    (request(fail_rate=1.1), 422, "fail_rate"),
    (request(parallel=-1), 422, "parallel"),
    (request(parallel=10**30), 422, "parallel"),
    (request(timeout=-1), 422, "timeout"),
    (request(priority=2**32), 422, "priority"),
    (request(name=" "), 422, "name"),
    (request(name="x" * 201), 422, "name"),
    (request(cwd="relative"), 422, "cwd"),
    (request(interpreter=[]), 422, "interpreter"),
    (request(args=["a\0b"]), 422, "args[0]"),
    (request(args=[TOO_LONG]), 422, "args[0]"),
    (request(args=["x" * 100_000] * 12), 413, "args"),
    (request(env={"1X": "y"}), 422, "env.1X"),
    (request(env={"MUSTER_X": "y"}), 422, "env.MUSTER_X"),
    (request(on_stop="panic"), 422, "on_stop"),
    (request(output_limit=5), 422, "output_limit"),
    (request(surprise=1), 422, "surprise"),
    (request(retries=1, targets=["one"]), 422, "retries"),
    (request(b"x" * (4 * 1024 * 1024 + 1)), 422, "script"),
]


@pytest.mark.parametrize(("body", "status", "field"), REFUSED, ids=[f"{number}" for number in range(len(REFUSED))])
def test_a_request_that_is_refused_stores_nothing(stack: Stack, body: Any, status: int, field: str) -> None:
    before = stack.count_tasks()
    stack.http.post("tasks", body).refused(status, "too_large" if status == 413 else "invalid_request", field)
    assert stack.count_tasks() == before


def test_all_faults_are_named_at_once(stack: Stack) -> None:
    body = request(timeout=-1, priority=-1, fail_count=0, targets=[""])
    stack.http.post("tasks", body).refused(422, "invalid_request", "timeout", "priority", "fail_count", "targets[0]")


def test_a_script_of_4_mib_is_accepted(stack: Stack) -> None:
    content = bytes(4 * 1024 * 1024)
    task = submitted(stack, content=content)
    assert stack.http.get(f"tasks/{task['id']}/script").body == content
    stack.http.post(f"tasks/{task['id']}/cancel")


def test_lists_take_several_states_times_and_text(stack: Stack) -> None:
    marker = f"several {time.monotonic_ns()}"
    done, _ = finished(stack)
    first = submitted(stack, name=f"{marker} one")
    second = submitted(stack, name=f"{marker} two", targets=["one", "two"])

    def ids(query: str) -> list[str]:
        answer = stack.http.get(f"tasks?name={marker.replace(' ', '%20')}&{query}")
        assert answer.status == 200, answer.body
        return [task["id"] for task in answer.json["items"]]

    assert ids("state=running,waiting") == [second["id"], first["id"]]
    assert ids("state=succeeded,failed") == []
    assert ids(f"until={second['created_at']}") == [first["id"]]
    assert ids(f"since={second['created_at']}") == [second["id"]]
    assert ids(f"since={first['created_at']}&until={second['created_at']}") == [first["id"]]
    both = [task["id"] for task in stack.http.get("tasks?state=succeeded,waiting&limit=500").json["items"]]
    assert {done["id"], first["id"]} <= set(both)
    runs = stack.http.get(f"tasks/{second['id']}/runs?state=ready,leased&agent=TW").json["items"]
    assert [run["agent"]["name"] for run in runs] == ["two"]
    for path in ("tasks?state=running,gone", f"tasks/{second['id']}/runs?state=waiting", "agents?state=away,online"):
        refused = stack.http.get(path)
        assert (refused.status, [each["field"] for each in refused.json["errors"]]) == (422, ["state"])
    refused = stack.http.get("tasks?until=yesterday")
    assert (refused.status, [each["field"] for each in refused.json["errors"]]) == (422, ["until"])
    for task in (first, second):
        assert stack.http.post(f"tasks/{task['id']}/cancel").status == 202


def test_agents_are_found_by_state_and_text(stack: Stack) -> None:
    def names(query: str) -> list[str]:
        answer = stack.http.get(f"agents?{query}")
        assert answer.status == 200, answer.body
        return [agent["name"] for agent in answer.json["items"]]

    assert {"one", "two"} <= set(names("state=online,draining"))
    assert names("state=conflict") == []
    assert names("q=ONE.lan") == ["one"]
    assert stack.http.call("PATCH", "agents/two", {"labels": {"Zone": "east-7"}}).status == 200
    try:
        assert names("q=zone%3Deast") == names("q=EAST-7&state=online") == ["two"]
        assert names("q=zone%3Dwest") == []
    finally:
        assert stack.http.call("PATCH", "agents/two", {"labels": None}).status == 200
    first = stack.http.get("agents?limit=1&q=o").json
    assert len(first["items"]) == 1 and first["next"]
    assert stack.http.get(f"agents?limit=1&q=o&cursor={first['next']}").json["items"] != first["items"]


def test_the_overview_is_answered_as_promised(stack: Stack) -> None:
    finished(stack, exit_code=3)
    waiting = submitted(stack, name="to be seen at a glance")
    answer = stack.http.get("overview")
    assert answer.status == 200, answer.body
    found = answer.json
    convert(found, shapes.Overview)
    assert waiting["id"] in [task["id"] for task in found["waiting"]]
    convert(found["waiting"][0], shapes.Task)
    assert found["counts"]["failed"] >= 1 and found["ended"][0]["ended_at"].endswith("Z")
    failed = next(item for item in found["attention"] if item["code"] == "task_failed")
    convert(failed, shapes.Attention)
    assert failed["at"].endswith("Z") and failed["args"] == {"failed": 1, "total": 1}
    assert found["fleet"]["online"] >= 2
    assert stack.http.post(f"tasks/{waiting['id']}/cancel").status == 202
