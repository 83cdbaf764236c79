"""The change feed's long polls, readiness and metrics, as the webserver asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.errors import StoreFull
from master import metrics
from tests.support.fake_agent import MasterHere, exited, master_here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def feed(here: MasterHere, after: int, *, wait_s: float = 0.0, limit: int = 500) -> dict[str, Any]:
    answer: dict[str, Any] = here.web("feed", after, wait_s, limit)
    return answer


# -- the feed ----------------------------------------------------------------------------------------------------------


def test_every_change_of_a_run_is_told_and_a_tasks_when_it_shows(here: MasterHere) -> None:
    a = here.agent("a")
    after = feed(here, -1)["last"]
    task = here.submit(targets=["a"])
    claim = a.run_one()
    events = feed(here, after)["events"]
    assert [event[1] for event in events] == ["task", "run", "task", "run", "run", "task"]
    assert {event[2] for event in events} == {task["id"]}
    assert {event[3] for event in events} == {None, claim["run_id"]}
    assert [event[0] for event in events] == list(range(after + 1, after + 7))


def test_a_poll_is_answered_when_something_changes_and_goes_on_from_there(here: MasterHere) -> None:
    here.agent("a")
    after = feed(here, -1)["last"]
    poll = gevent.spawn(feed, here, after, wait_s=30.0)
    while not len(here.master._feed_waits):
        here.web("list_agents", 1, None)
    here.submit(targets=["a"])
    answer = poll.get(timeout=10)
    assert len(answer["events"]) == 1
    assert feed(here, answer["last"]) == {"reset": False, "events": [], "last": answer["last"]}


def test_a_page_of_the_feed_is_bounded(here: MasterHere) -> None:
    here.agent("a")
    for _ in range(5):
        here.submit(targets=["a"])
    first = feed(here, 0, limit=2)
    assert [event[0] for event in first["events"]] == [1, 2]
    assert [event[0] for event in feed(here, first["last"], limit=2)["events"]] == [3, 4]


def test_a_row_from_another_history_resets(here: MasterHere) -> None:
    last = feed(here, -1)["last"]
    assert feed(here, last + 1, wait_s=30.0) == {"reset": True, "events": [], "last": last}


def test_the_end_of_the_master_ends_a_poll(here: MasterHere) -> None:
    poll = gevent.spawn(feed, here, feed(here, -1)["last"], wait_s=30.0)
    while not len(here.master._feed_waits):
        here.web("list_agents", 1, None)
    here.restart()
    assert poll.get(timeout=10)["events"] == []


# -- ready -------------------------------------------------------------------------------------------------------------


def test_a_sound_master_is_ready(here: MasterHere) -> None:
    answer = here.web("ready")
    assert (answer["ready"], answer["problems"]) == (True, [])
    assert answer["version"]


def test_a_store_that_does_not_write_is_named_until_it_does(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fn: object) -> None:
        raise StoreFull()

    here.agent("a")
    with monkeypatch.context() as broken:
        broken.setattr(here.master.store, "write", full)
        answer = here.web("ready")
        assert not answer["ready"]
        assert "full" in answer["problems"][0]
        with pytest.raises(StoreFull):
            here.submit(targets=["a"])
        assert here.web("list_tasks", {}, 10, None)["items"] == []  # reading goes on
    assert here.web("ready")["ready"]
    here.submit(targets=["a"])


def test_a_store_that_does_not_answer_is_named(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_ANSWER_S", 0.05)
    write = here.master.store.write
    stuck = gevent.event.Event()
    monkeypatch.setattr(here.master.store, "write", lambda fn: stuck.wait())
    assert "has not answered" in here.web("ready")["problems"][0]
    stuck.set()
    monkeypatch.setattr(here.master.store, "write", write)
    assert here.web("ready")["ready"]


def test_a_full_disk_is_named(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(here.data_dir)
    full = os.statvfs_result([*room[:4], 10, *room[5:]])
    monkeypatch.setattr(metrics.os, "statvfs", lambda path: full)
    (problem,) = here.web("ready")["problems"]
    assert str(here.data_dir) in problem


def test_output_trouble_is_over_when_a_trial_goes_well(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(here.master.output, "problem", lambda: asked.append("asked") or "no space left")
    assert here.web("ready")["ready"]
    assert asked
    assert here.master.output.size("readiness-probe", 0) == 0


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_the_metrics_are_prometheus_text_with_what_was_promised(here: MasterHere) -> None:
    a = here.agent("a")
    here.agent("b")
    here.submit(targets=["a", "b"])
    a.run_one(exited(1))
    here.advance(30.0, step=1.0)
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(here.web("metrics")):
        for sample in family.samples:
            values.setdefault(sample.name, {})["/".join(sample.labels.values())] = sample.value
    assert values["muster_runs"]["failed"] == 1
    assert values["muster_runs"]["ready"] == 1
    assert values["muster_agents"]["online"] == 2
    assert values["muster_queue_oldest_seconds"]["default"] == pytest.approx(30.0)
    assert values["muster_rpc_calls_total"]["agent/begin"] == 1
    assert values["muster_store_commits_total"]["store"] > 0
    assert values["muster_open_descriptors"][""] > 0
    for name in (
        "muster_rpc_seconds_total", "muster_rpc_pending", "muster_store_batch_size", "muster_store_queue",
        "muster_descriptor_limit", "muster_resident_bytes", "muster_output_pending_bytes", "muster_parked_pulls",
        "muster_loop_lag_seconds", "muster_held_runs", "muster_version",
    ):  # fmt: skip
        assert name in values, name


def test_errors_are_counted_by_their_code(here: MasterHere) -> None:
    with pytest.raises(Exception, match="There is no task"):
        here.web("get_task", "nosuch", 0)
    assert 'muster_rpc_errors_total{code="not_found",door="web"} 1.0' in here.web("metrics")
