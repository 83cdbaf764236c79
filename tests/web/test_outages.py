"""The master away, slow, busy or full: what a client is told, and that nothing is stored twice."""

from __future__ import annotations

import time

import gevent
import pytest

from common.errors import Busy, CallTimeout, Forbidden, MusterError, RateLimited, StoreFull, StoreUnavailable
from tests.support.fake_web_master import FakeWebMaster
from tests.support.web import Http, webserver_for
from tests.web.conftest import request


def test_with_the_master_away_it_is_503_and_says_when_to_try_again(fake: FakeWebMaster) -> None:
    with webserver_for(fake, connect_wait_s=0.2, patience_s=0.3) as web:
        http = Http(web.address)
        assert http.get("tasks").status == 200
        fake.stop()
        for answer in (http.get("tasks"), http.post("tasks", request()), http.get("tasks/x/events")):
            answer.refused(503, "peer_unreachable")
            assert int(answer.headers["Retry-After"]) > 0
        assert http.get("/healthz").status == 200
        ready = http.get("/readyz")
        assert (ready.status, ready.json["ready"]) == (503, False) and ready.json["problems"]
        assert ready.json["detail"] == "; ".join(ready.json["problems"])
        assert b"muster_web_master_connected 0.0" in http.get("/metrics").body
        fake.start()
        assert http.get("tasks").status == 200


def test_a_short_restart_of_the_master_is_a_slow_answer(http: Http, fake: FakeWebMaster) -> None:
    assert http.get("tasks").status == 200
    fake.stop()
    calls = [gevent.spawn(http.get, "tasks"), gevent.spawn(http.post, "tasks", request())]
    gevent.sleep(0.3)
    fake.start()
    assert [call.get().status for call in calls] == [200, 201]


def test_a_submission_whose_answer_was_lost_is_stored_once(http: Http, fake: FakeWebMaster) -> None:
    fake.lose_answers("add_task", 2)
    answer = http.post("tasks", request())
    assert answer.status == 201
    assert (fake.count("add_task"), len(fake.by_key)) == (3, 1)
    fake.lose_answers("add_task")
    answer = http.post("tasks", request(), idempotency_key="mine")
    assert answer.status == 201 and len(fake.by_key) == 2 and "mine" in fake.by_key
    fake.lose_answers("add_task")
    assert http.post("tasks", request(), idempotency_key="other").status == 201
    assert http.post("tasks", request(), idempotency_key="other").status == 200


def test_a_first_submission_that_waits_is_201_also_when_the_wait_is_broken(http: Http, fake: FakeWebMaster) -> None:
    waiting = gevent.spawn(http.post, "tasks", request(), idempotency_key="mine", prefer="wait=30")
    fake.wait_for(lambda: fake.by_key)
    fake.restart()
    fake.wait_for(lambda: fake.count("add_task") == 2)
    [run] = fake.runs.values()
    fake.begin(run)
    fake.end(run)
    answer = waiting.get()
    assert (answer.status, answer.json["state"]) == (201, "succeeded")
    assert http.post("tasks", request(), idempotency_key="mine", prefer="wait=30").status == 200


def test_a_repeat_that_finds_the_master_away_is_still_a_repeat(http: Http, fake: FakeWebMaster) -> None:
    assert http.post("tasks", request(), idempotency_key="mine").status == 201
    fake.stop()
    while http.get("/metrics").body.find(b"muster_web_master_connected 1.0") >= 0:
        gevent.sleep(0.02)
    repeat = gevent.spawn(http.post, "tasks", request(), idempotency_key="mine")
    gevent.sleep(0.1)
    fake.start()
    assert repeat.get().status == 200


def test_each_submission_has_a_key_of_its_own(http: Http, fake: FakeWebMaster) -> None:
    for _ in range(3):
        assert http.post("tasks", request()).status == 201
    assert len(fake.by_key) == 3


def test_a_wait_goes_on_over_a_restart_and_keeps_its_time(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    run = fake.runs_of(task)[0]
    waiting = gevent.spawn(http.get, f"tasks/{task['id']}?wait=30")
    short = gevent.spawn(http.get, f"tasks/{task['id']}?wait=1")
    fake.wait_for(lambda: fake.count("get_task") == 2)
    began = time.monotonic()
    fake.restart()
    assert short.get().json["state"] == "waiting" and 0.5 < time.monotonic() - began < 10
    fake.begin(run)
    fake.end(run)
    assert waiting.get().json["state"] == "succeeded"


def test_an_order_whose_answer_was_lost_is_not_given_again(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    fake.lose_answers("retry_task")
    http.post(f"tasks/{task['id']}/retry").refused(503, "peer_unreachable")
    assert fake.count("retry_task") == 1


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (Busy(), 503, "busy", True),
        (StoreUnavailable("the disk is broken"), 503, "store_unavailable", True),
        (StoreFull(), 507, "store_full", False),
        (CallTimeout("it did not answer"), 503, "call_timeout", True),
        (RateLimited(), 429, "rate_limited", True),
        (Forbidden("not this key"), 503, "unavailable", True),
        (MusterError("what?"), 500, "internal", False),
    ],
)
def test_the_masters_refusals_are_told_as_they_are(
    http: Http, fake: FakeWebMaster, error: MusterError, status: int, code: str, retry: bool
) -> None:
    fake.fail("add_task", error)
    answer = http.post("tasks", request())
    answer.refused(status, code)
    assert (answer.headers["Retry-After"] is not None) is retry


def test_a_master_of_another_version_is_a_bad_gateway(http: Http, fake: FakeWebMaster) -> None:
    http.get("verify").refused(502, "protocol_error")


def test_a_master_that_does_not_answer_in_time_is_503(fake: FakeWebMaster) -> None:
    with webserver_for(fake, answer_s=0.2) as web, fake.holding("list_tasks"):
        Http(web.address).get("tasks").refused(503, "call_timeout")


def test_readiness_names_what_is_in_the_way_and_notices_its_end(http: Http, fake: FakeWebMaster) -> None:
    fake.problems = ["the disk is full", "the output store does not answer"]
    answer = http.get("/readyz")
    assert (answer.status, answer.headers["Content-Type"]) == (503, "application/problem+json")
    assert answer.json["problems"] == fake.problems and answer.json["code"] == "not_ready"
    assert "the disk is full" in answer.json["detail"]
    fake.problems = []
    assert http.get("/readyz").status == 200
