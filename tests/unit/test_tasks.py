"""Submitting and steering tasks: what is refused whole, idempotency, cancel, pause, retry, and what views say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from common import faults
from common.errors import Conflict, InvalidRequest, KeyReused, MusterError, NotFound, TooLarge
from tests.support.fake_agent import EXITED_0, MasterHere, exited, master_here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def stored_tasks(here: MasterHere) -> int:
    return len(here.web("list_tasks", {}, 500, None)["items"])


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({}, "targets"),
        ({"targets": []}, "targets"),
        ({"targets": [""]}, "targets[0]"),
        ({"targets": ["*"]}, "targets[0]"),
        ({"targets": ["a", "nobody"]}, "targets[1]"),
        ({"count": 0}, "count"),
        ({"count": 3}, "count"),
        ({"targets": ["a"], "count": 2}, "count"),
        ({"count": 1, "queue": "nobody-serves-it"}, "count"),
        ({"targets": ["a"], "fail_count": 0}, "fail_count"),
        ({"targets": ["a"], "fail_rate": 1.5}, "fail_rate"),
        ({"targets": ["a"], "unheard_of": 1}, "unheard_of"),
        ({"targets": ["a"], "script": b""}, "script"),
        ({"targets": ["a"], "parallel": -1}, "parallel"),
    ],
)
def test_what_is_refused_names_its_field_and_stores_nothing(
    here: MasterHere, request_fields: dict[str, Any], field: str
) -> None:
    here.agent("a", queues=["default"])
    here.agent("b", queues=["default"])
    with pytest.raises(InvalidRequest) as refused:
        here.submit(**{"script": b"true", **request_fields})
    assert field in [fault.field for fault in refused.value.fields]
    assert stored_tasks(here) == 0


def test_every_faulty_target_is_named(here: MasterHere) -> None:
    here.agent("a")
    with pytest.raises(InvalidRequest) as refused:
        here.submit(targets=["x", "a", "y"])
    assert [fault.field for fault in refused.value.fields] == ["targets[0]", "targets[2]"]


def test_arguments_no_process_could_start_with_are_too_large(here: MasterHere) -> None:
    here.agent("a")
    with pytest.raises(TooLarge):
        here.submit(targets=["a"], args=["x" * 100_000] * 15)
    assert stored_tasks(here) == 0


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"interpreter": ["/bin/sh", *["x" * 120_000] * 20]}, "interpreter"),
        ({"interpreter": ["/bin/sh", "x" * 120_000], "args": ["x" * 120_000] * 8}, "args"),
        ({"env": {f"K{n}": "x" * 120_000 for n in range(20)}}, "env"),
    ],
)
def test_whatever_is_handed_to_the_process_counts(here: MasterHere, request_fields: dict[str, Any], field: str) -> None:
    here.agent("a")
    with pytest.raises(TooLarge) as refused:
        here.submit(targets=["a"], **request_fields)
    assert [fault.field for fault in refused.value.fields] == [field]
    assert stored_tasks(here) == 0


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"env": {"N" * 20_000: "x" * 120_000}}, "env." + "N" * 60),
        ({"env": {"N" * 131_072: ""}}, "env." + "N" * 60),
        ({"cwd": "/" + "x" * 4_095}, "cwd"),
    ],
)
def test_what_the_kernel_would_not_take_is_refused(
    here: MasterHere, request_fields: dict[str, Any], field: str
) -> None:
    here.agent("a")
    with pytest.raises(InvalidRequest) as refused:
        here.submit(targets=["a"], **request_fields)
    assert [fault.field for fault in refused.value.fields] == [field]


def test_the_largest_request_reaches_its_agent(here: MasterHere) -> None:
    a = here.agent("a")
    here.submit(b"#" * 60_000, targets=["a"], args=["x" * 126_000] * 8, env={"N": "x" * 30_000}, cwd="/" + "x" * 4_000)
    assert len(a.claim()) == 1


def test_targets_by_id_name_and_prefix_collapse(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a", a.agent_id, a.agent_id[:30], a.agent_id.upper()[:30]])
    assert [run["agent"]["id"] for run in here.runs(task)] == [a.agent_id]


def test_a_prefix_of_several_ids_is_refused(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    common = "".join(x for x, y in zip(a.agent_id, b.agent_id, strict=True) if x == y)[:6]
    with pytest.raises(InvalidRequest, match="begins the ids of 2 agents"):
        here.submit(targets=[common])
    with pytest.raises(InvalidRequest, match="no agent"):
        here.submit(targets=[a.agent_id[:3]])


def test_the_answer_repeats_the_request_without_the_script(here: MasterHere) -> None:
    here.agent("a")
    view = here.submit(
        b"echo hi\n", targets=["a"], args=["1"], env={"K": "v"}, cwd="/tmp", timeout=9.0, parallel=2, fail_count=3,
        fail_rate=0.5, on_stop="kill", priority=7, expires=60.0, lost_after=0.0, output_limit=4096, name="N",
    )  # fmt: skip
    expected = {
        "targets": ["a"], "args": ["1"], "env": {"K": "v"}, "cwd": "/tmp", "timeout": 9.0, "parallel": 2,
        "fail_count": 3, "fail_rate": 0.5, "on_stop": "kill", "priority": 7, "expires": 60.0, "lost_after": 0.0,
        "output_limit": 4096, "name": "N", "count": None, "queue": "default", "script_size": 8, "submitted_by": "test",
    }  # fmt: skip
    assert {field: view[field] for field in expected} == expected
    assert {field: here.task(view)[field] for field in expected} == expected
    assert "script" not in view
    assert here.web("get_script", view["id"])["data"] == b"echo hi\n"


# -- idempotency -------------------------------------------------------------------------------------------------------


def test_the_same_key_and_body_give_the_first_task(here: MasterHere) -> None:
    here.agent("a")
    first = here.submit(targets=["a"], key="k")
    assert here.submit(targets=["a"], key="k")["id"] == first["id"]
    assert stored_tasks(here) == 1


def test_the_same_key_with_another_body_is_refused(here: MasterHere) -> None:
    here.agent("a")
    here.submit(targets=["a"], key="k")
    with pytest.raises(KeyReused):
        here.submit(targets=["a"], key="k", timeout=1.0)
    assert stored_tasks(here) == 1


def test_a_repeat_is_answered_though_its_target_is_gone(here: MasterHere) -> None:
    here.agent("a")
    first = here.submit(targets=["a"], key="k")
    here.master.fleet.remove(here.web("get_agent", "a")["id"])
    assert here.submit(targets=["a"], key="k")["id"] == first["id"]
    with pytest.raises(InvalidRequest):
        here.submit(targets=["a"], key="other")


def test_twenty_at_once_with_one_key_make_one_task(here: MasterHere) -> None:
    here.agent("a")
    calls = [gevent.spawn(here.submit, targets=["a"], key="k") for _ in range(20)]
    gevent.joinall(calls, raise_error=True)
    assert len({call.value["id"] for call in calls}) == 1
    assert stored_tasks(here) == 1


# -- waiting for the end -----------------------------------------------------------------------------------------------


def test_a_submit_that_waits_is_answered_at_the_end(here: MasterHere) -> None:
    a = here.agent("a")
    waiting = gevent.spawn(here.submit, targets=["a"], wait_s=30.0)
    a.run_one(exited(5), wait_s=30.0)
    assert waiting.get(timeout=10)["state"] == "failed"


def test_get_task_waits_for_the_end_and_a_final_one_is_answered_at_once(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    waiting = gevent.spawn(here.task, task, wait_s=30.0)
    while not len(here.master.waits):
        here.web("list_agents", 1, None)
    a.run_one()
    assert waiting.get(timeout=10)["state"] == "succeeded"
    assert here.task(task, wait_s=30.0)["state"] == "succeeded"


def test_the_master_stops_while_somebody_waits(here: MasterHere) -> None:
    here.agent("a")
    waiting = gevent.spawn(here.submit, targets=["a"], wait_s=30.0)
    while not len(here.master.waits):
        here.web("list_agents", 1, None)
    here.restart()
    assert waiting.get(timeout=10)["state"] == "waiting"


# -- cancel, pause, retry ----------------------------------------------------------------------------------------------


def test_cancel_ends_what_has_not_begun_and_asks_what_runs(here: MasterHere) -> None:
    a, _ = here.agent("a"), here.agent("b")
    task = here.submit(targets=["a", "b"])
    (claim,) = a.claim()
    a.begin(claim)
    view = here.web("cancel_task", task["id"])
    assert view["counts"] == {"running": 1, "cancelled": 1}
    assert view["reason"]["code"] == "cancelled"
    assert a.beat()["cancel"] == [[claim["run_id"], "request"]]
    a.end(claim, exited(0, killed_by_us=True))
    assert here.task(task)["state"] == "cancelled"


def test_cancel_of_a_final_task_changes_nothing(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    a.run_one()
    assert here.web("cancel_task", task["id"])["state"] == "succeeded"
    assert here.task(task)["reason"] is None


def test_cancel_reaches_a_parked_pull_at_once(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    (claim,) = a.claim()
    a.begin(claim)
    parked = gevent.spawn(a.pull, 1, wait_s=30.0)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    here.web("cancel_task", task["id"])
    assert parked.get(timeout=10)["cancel"] == [[claim["run_id"], "request"]]


@pytest.mark.parametrize("failing", ["cancel_task", "retry_task"])
def test_a_decision_is_carried_on_though_a_slice_failed(
    here: MasterHere, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr("master.runs.SLICE", 2)
    names = [here.agent(f"a{n}").name for n in range(5)]
    task = here.submit(targets=names)
    if failing == "retry_task":
        here.web("cancel_task", task["id"])
    faults.arm("after-slice-commit=fail@1")
    try:
        with pytest.raises(MusterError):
            here.web(failing, task["id"], *(["failed"] if failing == "retry_task" else []))
    finally:
        faults.arm("")
    if failing == "cancel_task":
        assert here.task(task, wait_s=30.0)["counts"] == {"cancelled": 5}
    else:
        while here.task(task)["reason"] is not None:
            here.web("list_agents", 1, None)
        assert here.task(task)["counts"] == {"ready": 5}


def test_large_texts_are_null_in_a_list(here: MasterHere) -> None:
    here.agent("a")
    small = here.submit(targets=["a"], args=["1"])
    large = here.submit(targets=["a"], interpreter=["/bin/sh", "x" * 100_000], env={"K": "v"})
    shown = {view["id"]: view for view in here.web("list_tasks", {}, 50, None)["items"]}
    fields = ("interpreter", "args", "env")
    assert [shown[small["id"]][field] for field in fields] == [None, ["1"], {}]
    assert [shown[large["id"]][field] for field in fields] == [None, None, None]
    assert here.task(large)["args"] == [] and here.task(large)["env"] == {"K": "v"}


def test_one_run_is_cancelled_alone(here: MasterHere) -> None:
    here.agent("a"), here.agent("b")
    task = here.submit(targets=["a", "b"])
    first = here.runs(task)[0]
    assert here.web("cancel_run", first["id"][:20])["state"] == "cancelled"
    assert here.states(task) == ["cancelled", "ready"]
    assert here.web("cancel_run", first["id"])["state"] == "cancelled"


@pytest.mark.parametrize("call", ["pause_task", "resume_task"])
def test_a_final_task_cannot_be_paused_or_resumed(here: MasterHere, call: str) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    a.run_one()
    with pytest.raises(Conflict):
        here.web(call, task["id"])


def test_retry_reopens_what_did_not_succeed_under_the_same_ids(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    task = here.submit(targets=["a", "b"])
    a.run_one(exited(1))
    b.run_one(EXITED_0)
    before = here.runs(task)
    view = here.web("retry_task", task["id"], "failed")
    assert (view["state"], view["counts"], view["ended_at_ms"]) == ("running", {"ready": 1, "succeeded": 1}, None)
    after = here.runs(task)
    assert [run["id"] for run in after] == [run["id"] for run in before]
    assert [run["attempt"] for run in after] == [2, 1]
    assert b.claim() == []
    a.run_one(EXITED_0)
    assert here.task(task)["state"] == "succeeded"
    attempts = here.web("list_attempts", before[0]["id"])["items"]
    assert [(attempt["attempt"], attempt["exit_code"]) for attempt in attempts] == [(1, 1), (2, 0)]


def test_retry_all_runs_the_succeeded_again(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    a.run_one()
    assert here.web("retry_task", task["id"], "all")["counts"] == {"ready": 1}
    assert a.claim()[0]["attempt"] == 2


def test_retry_clears_the_stop_rule_and_judges_it_anew(here: MasterHere) -> None:
    a, b, c = here.agent("a"), here.agent("b"), here.agent("c")
    task = here.submit(targets=["a", "b", "c"], fail_count=1, parallel=1)
    a.run_one(exited(1))
    assert here.task(task)["counts"] == {"failed": 1, "skipped": 2}
    view = here.web("retry_task", task["id"], "failed")
    assert (view["counts"], view["reason"]) == ({"ready": 3}, None)
    assert [run["attempt"] for run in here.runs(task)] == [2, 1, 1]
    b.run_one(EXITED_0)
    c.run_one(exited(1))
    assert here.task(task)["counts"] == {"succeeded": 1, "failed": 1, "skipped": 1}


def test_retry_of_a_cancelled_task_clears_the_cancel(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    here.web("cancel_task", task["id"])
    assert here.web("retry_task", task["id"], "failed")["reason"] is None
    a.run_one()
    assert here.task(task)["state"] == "succeeded"


def test_retry_needs_a_final_task_with_something_to_retry(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    with pytest.raises(Conflict, match="not ended"):
        here.web("retry_task", task["id"], "failed")
    a.run_one()
    with pytest.raises(Conflict, match="no run to retry"):
        here.web("retry_task", task["id"], "failed")
    with pytest.raises(InvalidRequest):
        here.web("retry_task", task["id"], "some")


# -- reading -----------------------------------------------------------------------------------------------------------


def test_ids_may_be_shortened_and_unknown_ones_are_not_found(here: MasterHere) -> None:
    here.agent("a")
    task = here.submit(targets=["a"])
    assert here.web("get_task", task["id"][:18], 0)["id"] == task["id"]
    for text in ("nosuch", "0", "01890000-0000-7000-8000-000000000000"):
        with pytest.raises(NotFound):
            here.web("get_task", text, 0)
        with pytest.raises(NotFound):
            here.web("get_run", text)


def test_a_prefix_of_several_tasks_is_a_conflict(here: MasterHere) -> None:
    here.agent("a")
    one, two = here.submit(targets=["a"]), here.submit(targets=["a"])
    common = one["id"][:8]
    assert two["id"].startswith(common)
    with pytest.raises(Conflict):
        here.web("get_task", common, 0)


def test_lists_filter_and_page(here: MasterHere) -> None:
    a = here.agent("a")
    here.agent("b")
    first = here.submit(targets=["a"], name="Backup of A")
    second = here.submit(targets=["b"], name="other")
    a.run_one()

    def ids(**where: Any) -> list[str]:
        return [task["id"] for task in here.web("list_tasks", where, 50, None)["items"]]

    assert ids() == [second["id"], first["id"]]
    assert ids(state="succeeded") == [first["id"]]
    assert ids(state=["waiting", "running"]) == [second["id"]]
    assert ids(agent="b") == [second["id"]]
    assert ids(agent=a.agent_id) == [first["id"]]
    assert ids(agent="nobody") == []
    assert ids(name="backup") == [first["id"]]
    page = here.web("list_tasks", {}, 1, None)
    assert [task["id"] for task in page["items"]] == [second["id"]]
    rest = here.web("list_tasks", {}, 1, page["next"])
    assert ([task["id"] for task in rest["items"]], rest["next"]) == ([first["id"]], None)
    for bad in ({"state": "nonsense"},):
        with pytest.raises(InvalidRequest):
            here.web("list_tasks", bad, 50, None)
    with pytest.raises(InvalidRequest):
        here.web("list_runs", first["id"], "nonsense", 50, None)


def test_runs_with_one_outcome_are_grouped(here: MasterHere) -> None:
    fleet = [here.agent(f"a{n}") for n in range(4)]
    task = here.submit(targets=[f"a{n}" for n in range(4)])
    for agent, code, out in zip(fleet, (0, 0, 0, 7), (b"same", b"same", b"other", b"same"), strict=True):
        (claim,) = agent.claim()
        agent.begin(claim)
        agent.write(claim, out)
        assert agent.end(claim, exited(code, output_bytes=len(out))) == "stored"
    groups = here.web("list_groups", task["id"])["items"]
    assert [(group["count"], group["exit_code"], sorted(group["names"])) for group in groups] == [
        (2, 0, ["a0", "a1"]), (1, 7, ["a3"]), (1, 0, ["a2"]),
    ]  # fmt: skip
    assert groups[0]["output_sha256"] == groups[1]["output_sha256"] != groups[2]["output_sha256"]


def test_a_preview_stores_nothing_and_says_where_it_would_run(here: MasterHere) -> None:
    here.agent("a")
    here.agent("b", queues=["builds"])
    preview = here.web("preview_task", {"script": b"true", "targets": ["b", "a"]})
    assert [(target["name"], target["state"]) for target in preview["targets"]] == [("a", "online"), ("b", "online")]
    assert preview["plan"] == "2 hosts"
    preview = here.web("preview_task", {"script": b"true", "count": 1})
    assert [target["name"] for target in preview["targets"]] == ["a"]
    with pytest.raises(InvalidRequest):
        here.web("preview_task", {"script": b"true", "targets": ["nobody"]})
    assert stored_tasks(here) == 0


def test_why_a_run_waits_is_told_by_the_code_that_hands_out(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    (run,) = here.runs(task)

    def codes() -> list[str]:
        return [verdict["code"] for verdict in here.web("explain_run", run["id"])["verdicts"]]

    assert codes() == ["may"]
    here.web("drain_agent", "a")
    assert codes() == ["agent_draining"]
    assert a.claim() == []
    here.web("pause_task", task["id"])
    assert codes() == ["task_paused", "agent_draining"]
    here.web("resume_agent", "a")
    here.web("resume_task", task["id"])
    (claim,) = a.claim()
    assert codes() == ["leased_not_begun"]
    a.begin(claim)
    assert codes() == ["running"]
    a.end(claim)
    assert codes() == ["final"]
