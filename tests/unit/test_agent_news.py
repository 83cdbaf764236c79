"""What people are to see of agents: rows of the feed when one changes, and the samples that charts are drawn from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import Conflict, NotFound, StoreFull
from master.lifecycle import Moment
from master.samples import INTERVAL_S, POINTS_MOST, Samples
from tests.support.fake_agent import MasterHere, exited, master_here

OFFLINE_S = 3 * 15.0 + 1.0


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


class News:
    """The feed's rows of agents from here on."""

    def __init__(self, here: MasterHere) -> None:
        self._here = here
        self._after = here.web("feed", -1)["last"]

    def agents(self) -> list[str]:
        """Which agents changed since this was asked last."""
        answer = self._here.web("feed", self._after, 0.0, 2_000)
        self._after = answer["last"]
        rows = [row for row in answer["events"] if row[1] == "agent"]
        assert all(row[2] is None and row[4] is None for row in rows)
        return [row[3] for row in rows]


def until_told(here: MasterHere, news: News, agent_id: str) -> None:
    """Wait for a row of this agent that is stored in the background."""
    while agent_id not in news.agents():
        here.web("ready")


def state(here: MasterHere, name: str) -> str:
    return here.web("get_agent", name)["state"]  # type: ignore[no-any-return]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_an_agent_that_comes_in_is_told(here: MasterHere) -> None:
    news = News(here)
    a = here.agent("a")
    until_told(here, news, a.agent_id)
    assert state(here, "a") == "online"
    a.session = "another process"
    a.register()
    assert a.agent_id in news.agents()
    a.register()
    a.beat()
    assert news.agents() == []


def test_silence_and_return_are_told_of_each_agent(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    c = here.agent("c")
    here.advance(OFFLINE_S - 6.0, step=1.0)
    c.beat()
    news = News(here)
    here.advance(10.0, step=1.0)
    assert news.agents() == [a.agent_id, b.agent_id]
    assert state(here, "a") == "offline"
    a.beat()
    until_told(here, news, a.agent_id)
    assert b.agent_id not in news.agents()


def test_what_people_do_with_an_agent_is_told(here: MasterHere) -> None:
    a = here.agent("a")
    for method, *more in (
        ("patch_agent", {"labels": {"role": "db"}}),
        ("patch_agent", {"slots": 9}),
        ("drain_agent",),
        ("resume_agent",),
        ("drain_agent",),
        ("revoke_agent",),
    ):
        news = News(here)
        here.web(method, "a", *more)
        assert a.agent_id in news.agents(), method
    news = News(here)
    here.web("drain_agent", "a")
    assert news.agents() == []
    here.advance(OFFLINE_S, step=1.0)
    news.agents()
    here.web("forget_agent", "a")
    assert news.agents() == [a.agent_id]
    with pytest.raises(NotFound):
        here.web("get_agent", a.agent_id)
    assert here.web("get_agents", [a.agent_id]) == {"items": []}


def test_two_daemons_with_one_identity_are_told_from_the_first_word_to_the_end(here: MasterHere) -> None:
    a = here.agent("a")
    copy = here.agent("a", twin=a, machine_id="elsewhere", register=False)
    news = News(here)
    with pytest.raises(Conflict):
        copy.register()
    here.keep()
    assert a.agent_id in news.agents()
    assert state(here, "a") == "conflict"
    for _ in range(4):
        here.advance(15.0, step=1.0)
        a.beat()
    assert a.agent_id in news.agents()
    assert state(here, "a") == "online"


def test_a_change_that_could_not_be_told_is_told_later(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fn: object) -> None:
        raise StoreFull()

    a = here.agent("a")
    copy = here.agent("a", twin=a, machine_id="elsewhere", register=False)
    news = News(here)
    with pytest.raises(Conflict):
        copy.register()
    with monkeypatch.context() as broken:
        broken.setattr(here.master.store, "write", full)
        with pytest.raises(StoreFull):
            here.keep()
    news.agents()
    here.keep()
    assert news.agents() == [a.agent_id]
    here.keep()
    assert news.agents() == []


def test_work_of_an_agent_tells_nothing_of_the_agent(here: MasterHere) -> None:
    a = here.agent("a")
    here.submit(targets=["a"])
    news = News(here)
    a.run_one(exited(0))
    assert news.agents() == []


def test_several_agents_are_fetched_in_one_call(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    found = here.web("get_agents", [b.agent_id, "gone", a.agent_id])["items"]
    assert [view["name"] for view in found] == ["b", "a"]


# -- samples -----------------------------------------------------------------------------------------------------------


def facts(cpu: float, memory: int = 2**33 + 1, load: float = 0.25) -> dict[str, Any]:
    return {"cpu_percent": cpu, "memory_used": memory, "load": [load, 9.0, 9.0]}


def at(seconds: float) -> Moment:
    return Moment(engine_s=seconds, wall_ms=1_700_000_000_000 + round(seconds * 1000))


def test_a_point_stands_for_a_quarter_of_a_minute() -> None:
    samples = Samples()
    for second, cpu in ((0, 10.0), (5, 20.0), (10, 60.0), (15, 5.0), (44, 7.0)):
        samples.note("a", facts(cpu, memory=second, load=second / 4), at(second))
    assert samples.view("a", at(50)) == {
        "interval_s": 15,
        "points": [
            [1_700_000_010_000, 30.0, 10, 2.5],
            [1_700_000_015_000, 5.0, 15, 3.75],
            [1_700_000_044_000, 7.0, 44, 11.0],
        ],
    }
    assert samples.view("b", at(50)) == {"interval_s": 15, "points": []}


def test_the_last_hour_is_kept_and_no_more() -> None:
    samples = Samples()
    for number in range(POINTS_MOST + 50):
        samples.note("a", facts(float(number % 100)), at(number * INTERVAL_S))
    end = (POINTS_MOST + 49) * INTERVAL_S
    points = samples.view("a", at(end))["points"]
    assert len(points) == POINTS_MOST
    assert points == sorted(points)
    assert points[-1] == [at(end).wall_ms, float((POINTS_MOST + 49) % 100), 2**33 + 1, 0.25]
    later = samples.view("a", at(end + 1800))["points"]
    assert later == points[-121:]
    assert samples.view("a", at(end + 3601))["points"] == []


def test_what_was_not_said_is_null() -> None:
    samples = Samples()
    samples.note("a", {}, at(0))
    samples.note("a", {"load": []}, at(20))
    samples.note("a", facts(1.0), at(25))
    assert [point[1:] for point in samples.view("a", at(30))["points"]] == [
        [None, None, None],
        [1.0, 2**33 + 1, 0.25],
    ]


def test_a_wall_clock_that_was_set_does_not_tear_the_chart() -> None:
    samples = Samples()
    for number in range(4):
        samples.note("a", facts(1.0), Moment(engine_s=number * 15.0, wall_ms=number * 977_777))
    points = samples.view("a", Moment(engine_s=45.0, wall_ms=1_000_000))["points"]
    assert [point[0] for point in points] == [955_000, 970_000, 985_000, 1_000_000]


def test_the_samples_of_5000_agents_fit_into_40_mb() -> None:
    samples = Samples()
    for number in range(POINTS_MOST + 1):
        samples.note("a", facts(1.0), at(number * INTERVAL_S))
    ring = samples._rings["a"]
    each = sys.getsizeof(ring) + sum(sys.getsizeof(getattr(ring, name)) for name in ring.__slots__)
    assert (each + 250) * 5_000 < 40_000_000  # and the entry, and the id


def test_heartbeats_bring_samples_until_the_agent_is_forgotten(here: MasterHere) -> None:
    a = here.agent("a")
    assert here.web("agent_samples", "a")["points"] == []
    for number in range(3):
        here.clock.advance(15.0)  # type: ignore[union-attr]
        a.beat(facts=facts(10.0 * number))
    points = here.web("agent_samples", "a")["points"]
    assert [point[1:] for point in points] == [[10.0 * n, 2**33 + 1, 0.25] for n in range(3)]
    commits = here.master.store.stats()["commits"]
    a.beat(facts=facts(1.0))
    assert here.master.store.stats()["commits"] == commits
    here.advance(OFFLINE_S, step=1.0)
    here.web("forget_agent", "a")
    with pytest.raises(NotFound):
        here.web("agent_samples", "a")
    assert not here.master.agents._samples._rings
