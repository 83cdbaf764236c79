"""The page of a task over HTTP, as a browser without scripts sees it, before a real master."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.web import Answer
from tests.web.conftest import Stack, request
from webserver.pages.door import csrf_token
from webserver.pages.task import cancel_question, grouped, retry_words, turn, waits


class Visitor:
    """A browser that is logged in."""

    def __init__(self, stack: Stack) -> None:
        url = stack.http.post("login-links").json["url"]
        made = stack.web.services.master.act("log_in", url.rsplit("/", 1)[1], "192.0.2.1", "Firefox")
        self.secret: str = made["session"]
        self.stack = stack
        host, port = stack.web.address
        self.cookie = {"authorization": None, "host": f"{host}:{port}", "accept": "text/html"}

    def _headers(self) -> dict[str, str | None]:
        port = self.stack.web.address[1]
        return {**self.cookie, "cookie": f"muster_session_{port}={self.secret}"}

    def get(self, path: str) -> Answer:
        """A page."""
        return self.stack.http.get(path, **self._headers())

    def post(self, path: str, *, script: bool = False, **form: str) -> Answer:
        """A form, sent by itself or by a script."""
        body = urlencode({"csrf": csrf_token(self.secret), **form}).encode()
        more = {"content_type": "application/x-www-form-urlencoded", **({"hx_request": "true"} if script else {})}
        return self.stack.http.call("POST", path, raw=body, **self._headers(), **more)


@pytest.fixture
def visitor(stack: Stack) -> Visitor:
    return Visitor(stack)


def submit(stack: Stack, content: str = "true", **fields: Any) -> str:
    answer = stack.http.post("tasks", request(content, **fields))
    assert answer.status == 201, answer.body
    task_id: str = answer.json["id"]
    return task_id


def state(stack: Stack, task_id: str) -> str:
    found: str = stack.http.get(f"tasks/{task_id}").json["state"]
    return found


def shown_actions(page: str) -> set[str]:
    forms = re.findall(r'data-action="(\w+)"( hidden)?>', page)
    return {name for name, hidden in forms if not hidden}


def test_the_page_is_whole_without_scripts(stack: Stack, visitor: Visitor) -> None:
    task_id = submit(
        stack, "#!/bin/sh\necho '<b>'\n", name="<i>deploy</i>", args=["a b"], env={"STAGE": "<x>"}, timeout=90
    )
    stack.one.end(stack.one.take(), exit_code=3)
    page = visitor.get(f"/tasks/{task_id}").body.decode()
    assert "<title>failed · &lt;i&gt;deploy&lt;/i&gt; · muster</title>" in page
    assert "exit code 3" in page and 'title="one"' in page
    assert "echo &#39;&lt;b&gt;&#39;" in page and "2 lines" in page and "STAGE=&lt;x&gt;" in page
    assert "1 min 30 s" in page
    assert "<i>" not in page.replace("<i></i>", "") and "style=" not in page
    assert shown_actions(page) == {"retry_failed", "retry_all"}
    assert f'href="/submit?from={task_id}"' in page


def test_the_beginning_of_an_id_leads_to_the_task_and_an_unknown_one_nowhere(stack: Stack, visitor: Visitor) -> None:
    task_id = submit(stack)
    stack.one.end(stack.one.take())
    answer = visitor.get(f"/tasks/{task_id[:30]}")
    assert (answer.status, answer.headers["Location"]) == (303, f"/tasks/{task_id}")
    for path in ("/tasks/00000000-0000-0000-0000-000000000000", "/tasks/nothing", "/runs/nothing"):
        answer = visitor.get(path)
        assert answer.status == 404 and "Not found" in answer.body.decode()
    run_id = stack.http.get(f"tasks/{task_id}/runs").json["items"][0]["id"]
    assert visitor.get(f"/runs/{run_id}").headers["Location"] == f"/tasks/{task_id}#run={run_id}"


def test_forms_pause_resume_cancel_and_retry(stack: Stack, visitor: Visitor) -> None:
    task_id = submit(stack, targets=["one", "two"])
    assert shown_actions(visitor.get(f"/tasks/{task_id}").body.decode()) == {"pause", "cancel"}
    answer = visitor.post(f"/tasks/{task_id}/pause")
    assert (answer.status, answer.headers["Location"]) == (303, f"/tasks/{task_id}")
    page = visitor.get(f"/tasks/{task_id}").body.decode()
    assert shown_actions(page) == {"resume", "cancel"} and "the task is paused" in page
    assert visitor.post(f"/tasks/{task_id}/resume").status == 303
    held = stack.one.take()
    assert (
        "1 run has not begun and never will. 1 running script gets TERM"
        in visitor.get(f"/tasks/{task_id}").body.decode()
    )
    assert visitor.post(f"/tasks/{task_id}/cancel").status == 303
    stack.one.end(held, exit_code=1)
    page = visitor.get(f"/tasks/{task_id}").body.decode()
    assert state(stack, task_id) == "cancelled" and "Cancelled by admin." in page
    assert visitor.post(f"/tasks/{task_id}/retry", only="failed").status == 303
    for hand in (stack.one, stack.two):
        hand.end(hand.take())
    assert state(stack, task_id) == "succeeded"
    assert shown_actions(visitor.get(f"/tasks/{task_id}").body.decode()) == {"retry_all"}


def test_one_run_is_cancelled_by_itself(stack: Stack, visitor: Visitor) -> None:
    task_id = submit(stack, targets=["one", "two"], parallel=1)
    runs = {run["agent"]["name"]: run for run in stack.http.get(f"tasks/{task_id}/runs").json["items"]}
    answer = visitor.post(f"/runs/{runs['two']['id']}/cancel")
    assert (answer.status, answer.headers["Location"]) == (303, f"/tasks/{task_id}#run={runs['two']['id']}")
    stack.one.end(stack.one.take())
    found = {run["agent"]["name"]: run["state"] for run in stack.http.get(f"tasks/{task_id}/runs").json["items"]}
    assert found == {"one": "succeeded", "two": "cancelled"}


def test_scripts_are_answered_by_a_notice_alone(stack: Stack, visitor: Visitor) -> None:
    task_id = submit(stack)
    answer = visitor.post(f"/tasks/{task_id}/pause", script=True)
    assert answer.status == 204 and "Paused" in answer.headers["HX-Trigger"] and "HX-Redirect" not in answer.headers
    visitor.post(f"/tasks/{task_id}/cancel", script=True)
    answer = visitor.post(f"/tasks/{task_id}/pause", script=True)
    assert answer.status == 409 and "has ended" in answer.headers["HX-Trigger"]


def test_what_is_not_allowed_is_refused(stack: Stack, visitor: Visitor) -> None:
    task_id = submit(stack)
    assert visitor.post(f"/tasks/{task_id}/cancel", csrf="wrong").status == 403
    assert state(stack, task_id) == "waiting"
    assert visitor.post(f"/tasks/{task_id}/retry", only="some").status == 422
    assert visitor.post(f"/tasks/{task_id}/cancel").status == 303


def test_groups_come_failed_first_and_unlike_outputs_share_one() -> None:
    def group(state: str, code: int | None, sha256: str | None, count: int, *names: str) -> dict[str, Any]:
        outcome = None if code is None else "exit"
        return {
            "state": state, "outcome": outcome, "exit_code": code, "signal": None, "output_sha256": sha256,
            "count": count, "names": list(names),
        }  # fmt: skip

    found = grouped(
        [
            group("succeeded", 0, "a", 9), group("succeeded", 0, "b", 1, "x"), group("succeeded", 0, "c", 1, "y"),
            group("ready", None, None, 4), group("failed", 1, "a", 1, "z"), group("failed", 2, "d", 3),
        ]
    )  # fmt: skip
    told = [(each["state"], each["exit_code"], each["count"], each["mixed"]) for each in found]
    assert told == [
        ("failed", 2, 3, False), ("failed", 1, 1, False), ("ready", None, 4, False), ("succeeded", 0, 9, False),
        ("succeeded", 0, 2, True),
    ]  # fmt: skip
    assert found[-1]["names"] == ["x", "y"]


def test_cancelling_says_what_it_does(stack: Stack) -> None:
    with stack.web.app.test_request_context("/"):
        question = cancel_question({"counts": {"ready": 2, "leased": 1, "running": 2, "failed": 4}}, grace_s=10.0)
        assert question == (
            "Cancel this task? 3 runs have not begun and never will. 2 running scripts get TERM, then KILL after 10 s."
        )
        assert cancel_question({"counts": {"failed": 4}}, grace_s=10.0) == "Cancel this task?"


def test_the_retry_button_counts_what_failed_and_names_the_rest(stack: Stack) -> None:
    def said(**counts: int) -> tuple[str, int | None, str]:
        words = retry_words({"counts": counts, "total": sum(counts.values())})
        return words["word"], words["count"], words["also"]

    with stack.web.app.test_request_context("/"):
        assert said(succeeded=4, failed=2) == ("Retry failed", 2, "")
        assert said(failed=2, skipped=1) == ("Retry failed", 2, "and 1 skipped")
        assert said(failed=1, cancelled=1, expired=3) == ("Retry failed", 1, "and 1 cancelled, 3 expired")
        assert said(succeeded=1, cancelled=3) == ("Run the remaining 3", None, "")


def test_what_waits_is_said_only_where_it_needs_a_word(stack: Stack) -> None:
    def task(state: str, *waiting: tuple[str, dict[str, Any]], parallel: int = 0, **counts: int) -> dict[str, Any]:
        told = [{"code": code, "args": args} for code, args in waiting]
        return {
            "state": state, "paused": False, "waiting": told, "waiting_because": None, "parallel": parallel,
            "counts": counts,
        }  # fmt: skip

    drains = ("agent_draining", {"agent": "b/2"})
    with stack.web.app.test_request_context("/"):
        found = waits(task("running", drains, succeeded=1, ready=1))
        assert found is not None and found["head"] == "Nothing runs now; 1 run waits:"
        assert found["agents"] == [{"path": "/agents/b%2F2", "words": "Resume b/2 on its page"}]
        found = waits(task("running", ("agent_offline", {"agent": "c"}), running=1, ready=2))
        assert found is not None and (found["head"], found["text"]) == ("2 runs wait:", "c is offline")
        full = task("running", ("window_full", {"held": 2, "parallel": 2}), parallel=2, running=2, ready=3)
        assert waits(full) is None and turn(full) == "2 at a time; 3 more wait for their turn"
        assert turn({**full, "paused": True}) == "" and turn(task("running", drains, parallel=2, ready=1)) == ""


def test_runs_that_never_began_say_why(stack: Stack, visitor: Visitor) -> None:
    task_id = submit(stack, targets=["one", "two"], parallel=1, fail_count=1)
    stack.one.end(stack.one.take(), exit_code=1)
    page = visitor.get(f"/tasks/{task_id}").body.decode()
    assert "never began: the stop rule fired" in page and "and 1 skipped" in page
