"""The overview of a real master: tasks in their order, the fleet in numbers, and what needs a person, by urgency."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import Conflict
from master import metrics
from master.overview import OF_ONE_KIND, URGENCY
from tests.support.fake_agent import FakeAgent, MasterHere, exited, master_here

OFFLINE_S = 46.0


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def overview(here: MasterHere) -> dict[str, Any]:
    found: dict[str, Any] = here.web("overview")
    return found


def attention(here: MasterHere) -> list[tuple[str, str | None]]:
    return [(item["code"], item["name"]) for item in overview(here)["attention"]]


def names(tasks: list[dict[str, Any]]) -> list[str]:
    return [task["name"] for task in tasks]


def hold(agent: FakeAgent) -> dict[str, Any]:
    """Claim and begin a run."""
    [claim] = agent.claim()
    agent.begin(claim)
    return claim


def test_a_fresh_master_has_an_empty_overview(here: MasterHere) -> None:
    states = ("waiting", "running", "succeeded", "failed", "cancelled")
    fleet = {"total": 0, "online": 0, "offline": 0, "draining": 0, "conflict": 0, "slots": 0, "held": 0}
    assert overview(here) == {
        "counts": dict.fromkeys(states, 0),
        "running": [],
        "waiting": [],
        "ended": [],
        "fleet": fleet,
        "attention": [],
        "attention_more": False,
    }


def test_tasks_stand_where_they_are(here: MasterHere) -> None:
    a = here.agent("a")
    here.agent("b")
    here.submit(targets=["a"], name="good")
    a.run_one()
    here.clock.advance(1.0)  # type: ignore[union-attr]
    here.submit(targets=["a"], name="bad")
    a.run_one(exited(1))
    here.clock.advance(1.0)  # type: ignore[union-attr]
    here.submit(targets=["a", "b"], name="half begun", priority=1)
    hold(a)
    here.clock.advance(1.0)  # type: ignore[union-attr]
    here.submit(targets=["a"], name="begun", priority=1)
    hold(a)
    here.submit(targets=["b"], name="not begun")
    found = overview(here)
    assert found["counts"] == {"waiting": 1, "running": 2, "succeeded": 1, "failed": 1, "cancelled": 0}
    assert names(found["running"]) == ["begun", "half begun"]
    assert names(found["waiting"]) == ["not begun", "half begun"]
    assert names(found["ended"]) == ["bad", "good"]
    assert found["waiting"][0] == here.web("list_tasks", {"name": "not begun"}, 1, None)["items"][0]
    assert "waiting_because" in found["waiting"][0]


def test_the_fleet_is_told_in_numbers(here: MasterHere) -> None:
    a, b = here.agent("a", slots=3), here.agent("b", slots=5)
    here.agent("c", slots=7)
    here.submit(targets=["a", "b"])
    hold(a)
    hold(b)
    here.web("drain_agent", "b")
    fleet = overview(here)["fleet"]
    assert fleet == {"total": 3, "online": 2, "offline": 0, "draining": 1, "conflict": 0, "slots": 10, "held": 1}


def test_a_failure_is_news_for_a_day_and_none_once_a_retry_succeeded(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"], name="bad")
    a.run_one(exited(1))
    [item] = overview(here)["attention"]
    assert item == {
        "code": "task_failed", "task_id": task["id"], "agent_id": None, "name": "bad",
        "at_ms": here.task(task)["ended_at_ms"], "args": {"failed": 1, "total": 1},
    }  # fmt: skip
    here.web("retry_task", task["id"], "failed")
    assert attention(here) == []
    a.run_one()
    assert attention(here) == []
    here.submit(targets=["a"], name="bad again")
    a.run_one(exited(1))
    assert attention(here) == [("task_failed", "bad again")]
    here.clock.advance(24 * 3600 + 1.0)  # type: ignore[union-attr]
    assert attention(here) == []


def test_a_stopped_task_and_a_paused_one_need_a_person(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    stopped = here.submit(targets=["a", "b"], fail_count=1, name="stopped")
    hold(b)
    a.run_one(exited(1))
    [item] = overview(here)["attention"]
    assert (item["code"], item["task_id"], item["at_ms"]) == ("task_stopped", stopped["id"], None)
    args = {key: item["args"][key] for key in ("reason", "ended", "failed", "total")}
    assert args == {"reason": "fail_count", "ended": False, "failed": 1, "total": 2}
    paused = here.submit(targets=["a"], name="paused")
    here.web("pause_task", paused["id"])
    assert attention(here) == [("task_stopped", "stopped"), ("task_paused", "paused")]
    here.web("resume_task", paused["id"])
    hold(a)
    here.web("pause_task", paused["id"])
    assert attention(here) == [("task_stopped", "stopped")]


def test_an_agent_that_is_away_needs_a_person_unless_it_drains(here: MasterHere) -> None:
    idle, wanted, busy, leaving = (here.agent(name) for name in ("idle", "wanted", "busy", "leaving"))
    here.web("drain_agent", "leaving")
    task = here.submit(targets=["busy"], lost_after=0)
    hold(busy)
    here.submit(targets=["wanted"])
    here.submit(targets=["wanted"])
    here.advance(OFFLINE_S, step=1.0)
    items = overview(here)["attention"]
    assert [(item["code"], item["name"]) for item in items] == [
        ("run_silent", "busy"), ("agent_offline", "wanted"), ("agent_offline", "idle"),
    ]  # fmt: skip
    silent, waited, _ = items
    agent_id = here.web("get_agent", "busy")["id"]
    args = {"runs": 1, "run_id": here.runs(task)[0]["id"]}
    assert (silent["task_id"], silent["agent_id"], silent["args"]) == (task["id"], agent_id, args)
    assert silent["at_ms"] is not None
    assert waited["args"] == {"waiting": 2} and waited["at_ms"] is not None
    for agent in (idle, wanted, busy, leaving):
        agent.beat()
    assert overview(here)["fleet"]["offline"] == 0


def test_two_daemons_of_one_identity_need_a_person(here: MasterHere) -> None:
    a = here.agent("a")
    copy = here.agent("a", twin=a, machine_id="elsewhere", register=False)
    with pytest.raises(Conflict):
        copy.register()
    assert attention(here) == [("agent_conflict", "a")]
    assert overview(here)["fleet"]["conflict"] == 1


def test_a_full_disk_comes_first_and_no_kind_hides_another(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    a = here.agent("a")
    for number in range(OF_ONE_KIND + 5):
        here.submit(targets=["a"], name=f"bad {number}")
        a.run_one(exited(1))
    paused = here.submit(targets=["a"], name="paused")
    here.web("pause_task", paused["id"])
    monkeypatch.setattr(metrics, "DISK_LEAST", 1 << 62)
    found = overview(here)
    codes = [item["code"] for item in found["attention"]]
    assert codes == ["disk", *["task_failed"] * OF_ONE_KIND, "task_paused"]
    assert found["attention_more"]
    assert found["attention"][0]["args"]["what"] == "disk" and "full" in found["attention"][0]["args"]["detail"]
    assert found["attention"][1]["name"] == f"bad {OF_ONE_KIND + 4}"
    assert set(codes) <= set(URGENCY)
