"""Random lives of a whole master with fake agents, each from a seed: every promise kept, every task ends.

Agents forget, repeat, vanish and come back; the master restarts; people cancel, pause, retry, drain. Time is moved by
hand. In the end everybody behaves, and then every task must end, and the history checker must find nothing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from common.errors import Conflict
from common.model import Ending, Outcome
from master.verify import Accepted, Begun, History, Holding, Told, check
from tests.support.fake_agent import FakeAgent, MasterHere, exited, master_here

AGENTS = 4
STEPS = 150
BEGIN_LEASE_S = 15.0
FINAL = {"succeeded", "failed", "cancelled", "skipped", "expired"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Many seeds with `--full`, a few without."""
    metafunc.parametrize("seed", range(200 if metafunc.config.getoption("--full") else 8))


class Life:
    """One master's life and what was seen of it."""

    def __init__(self, here: MasterHere, seed: int) -> None:
        self.here = here
        self.random = random.Random(seed)
        self.history = History()
        self.claims: dict[str, list[dict[str, Any]]] = {}  # by agent: claimed, not begun
        self.begun: dict[str, list[dict[str, Any]]] = {}  # by agent: begun, not ended
        self.since: dict[str, float] = {}  # lease → when it was claimed
        self.agents = [here.agent(f"a{n}", slots=3) for n in range(AGENTS)]
        for agent in self.agents:
            self.claims[agent.name], self.begun[agent.name] = [], []
        self.tasks: list[dict[str, Any]] = []

    @property
    def now_s(self) -> float:
        return self.here.master.clock.monotonic_s()

    # -- what happens --------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        pick = self.random
        names = [agent.name for agent in self.agents]
        request: dict[str, Any] = {"parallel": pick.choice([0, 0, 1, 2]), "priority": pick.choice([1, 1024])}
        if pick.random() < 0.6:
            request["targets"] = pick.sample(names, pick.randint(1, AGENTS))
        else:
            request["count"] = pick.randint(1, AGENTS)
        request.update(pick.choice([{}, {"fail_count": 1}, {"fail_rate": 0.4}, {"fail_count": 1, "on_stop": "kill"}]))
        request.update(pick.choice([{}, {}, {"lost_after": 20.0}, {"expires": 15.0}]))
        task = self.here.submit(**request)
        self.tasks.append(task)
        self.history.accepted.append(Accepted(task["id"], task["total"], request["parallel"]))

    def pull(self) -> None:
        agent = self.random.choice(self.agents)
        free = agent.slots - len(self.claims[agent.name]) - len(self.begun[agent.name])
        named = dict(agent.held)
        answer = agent.pull(free)
        self.obey(agent, answer, named)
        if answer["register"]:
            return self.register(agent)
        lost = self.random.random() < 0.15  # the answer never arrives
        for claim in answer["runs"]:
            self.since[claim["lease"]] = self.now_s
            if lost:
                agent.held.pop(claim["run_id"])
                self.let_go(agent, claim)
            else:
                self.claims[agent.name].append(claim)

    def begin(self) -> None:
        agent = self.random.choice(self.agents)
        for claim in self.claims[agent.name][:2]:
            self.claims[agent.name].remove(claim)
            (answer,) = agent.begin(claim)
            if self.random.random() < 0.2:  # its answer is lost, it asks again
                (answer,) = agent.begin(claim)
            if answer["ok"]:
                claim["began_s"] = self.now_s
                self.begun[agent.name].append(claim)
            else:
                self.let_go(agent, claim)

    def end(self) -> None:
        agent = self.random.choice(self.agents)
        for claim in self.begun[agent.name][:2]:
            self.finish(agent, claim, self.random.choice([exited(0), exited(0), exited(1)]))

    def finish(self, agent: FakeAgent, claim: dict[str, Any], ending: Ending) -> None:
        self.begun[agent.name].remove(claim)
        until_s = self.now_s
        taken = agent.end(claim, ending)
        if self.random.random() < 0.2:
            assert agent.end(claim, ending) in ("repeat", "late")
        assert taken in ("stored", "repeat", "late")
        self.history.begun.append(Begun(claim["task_id"], claim["run_id"], claim["attempt"], claim["began_s"], until_s))
        self.let_go(agent, claim)

    def release(self) -> None:
        agent = self.random.choice(self.agents)
        for claim in self.claims[agent.name][:1]:
            self.claims[agent.name].remove(claim)
            agent.release(claim)
            self.let_go(agent, claim)

    def beat(self) -> None:
        for agent in self.agents:
            named = dict(agent.held)
            answer = agent.beat()
            if answer["register"]:
                self.register(agent)
            else:
                self.obey(agent, answer, named)

    def obey(self, agent: FakeAgent, answer: dict[str, Any], named: dict[str, str]) -> None:
        for run_id, _ in answer["cancel"]:
            for claim in [c for c in self.begun[agent.name] if c["run_id"] == run_id]:
                self.finish(agent, claim, Ending(outcome=Outcome.SIGNAL, signal="SIGTERM", killed_by_us=True))
        for run_id in answer["stale"]:  # counts for the lease that was named; the run may be ours anew
            if agent.held.get(run_id) == named[run_id]:
                del agent.held[run_id]
            for claim in [c for c in self.claims[agent.name] if c["lease"] == named[run_id]]:
                self.claims[agent.name].remove(claim)
                self.let_go(agent, claim)
            for claim in [c for c in self.begun[agent.name] if c["lease"] == named[run_id]]:
                self.finish(agent, claim, Ending(outcome=Outcome.SIGNAL, signal="SIGKILL", killed_by_us=True))

    def register(self, agent: FakeAgent) -> None:
        held = [[c["run_id"], c["attempt"], c["lease"]] for c in self.claims[agent.name] + self.begun[agent.name]]
        answer = agent.register(held=held)
        mine = {c["lease"] for c in self.begun[agent.name]}
        for run_id, attempt, lease, _ in answer["running"]:
            if lease not in mine:  # begun as far as the master knows, and nobody here runs it
                told = {"run_id": run_id, "attempt": attempt, "lease": lease}
                agent.end(told, Ending(outcome=Outcome.INTERRUPTED))
        for run_id in answer["drop"]:
            for claim in [c for c in self.claims[agent.name] if c["run_id"] == run_id]:
                self.claims[agent.name].remove(claim)
                agent.held.pop(run_id, None)
                self.let_go(agent, claim)

    def let_go(self, agent: FakeAgent, claim: dict[str, Any]) -> None:
        since = self.since.pop(claim["lease"], None)
        if since is not None:
            # What was not begun may be trusted for its lease only; that nothing is begun twice is seen elsewhere.
            until_s = min(self.now_s, since + BEGIN_LEASE_S)
            self.history.held.append(Holding(claim["run_id"], claim["lease"], agent.agent_id, since, until_s))

    def restart_daemon(self) -> None:
        agent = self.random.choice(self.agents)
        agent.session += "x"
        self.register(agent)

    def restart_master(self) -> None:
        self.here.restart(*self.agents)

    def command(self) -> None:
        if not self.tasks:
            return
        task = self.random.choice(self.tasks)
        method = self.random.choice(["cancel_task", "pause_task", "resume_task", "retry_task"])
        try:
            self.here.web(method, task["id"], *(["failed"] if method == "retry_task" else []))
        except Conflict:
            pass

    def drain(self) -> None:
        agent = self.random.choice(self.agents)
        self.here.web(self.random.choice(["drain_agent", "resume_agent"]), agent.name)

    def time(self) -> None:
        self.here.advance(self.random.choice([0.2, 1.0, 5.0, 20.0]), step=1.0)

    def look(self) -> None:
        for task in self.tasks[-5:]:
            for run in self.here.runs(task):
                self.history.told.append(Told(self.now_s, run["id"], run["attempt"], run["state"]))

    # -- all of it -----------------------------------------------------------------------------------------------------

    def live(self) -> None:
        deeds = {
            self.submit: 4, self.pull: 12, self.begin: 10, self.end: 10, self.release: 1, self.beat: 4,
            self.restart_daemon: 1, self.restart_master: 0.4, self.command: 3, self.drain: 1, self.time: 3,
            self.look: 2,
        }  # fmt: skip
        for _ in range(STEPS):
            self.random.choices(list(deeds), list(deeds.values()))[0]()
            self.windows_hold()

    def windows_hold(self) -> None:
        for task in self.tasks[-3:]:
            view = self.here.task(task)
            held = view["counts"].get("running", 0) + view["counts"].get("leased", 0)
            assert not view["parallel"] or held <= view["parallel"], view

    def settle(self) -> None:
        """Everybody behaves from now on."""
        for agent in self.agents:
            self.here.web("resume_agent", agent.name)
        for task in self.tasks:
            try:
                self.here.web("resume_task", task["id"])
            except Conflict:
                pass
        for _ in range(400):
            self.beat()
            for agent in self.agents:
                named = dict(agent.held)
                self.obey(agent, answer := agent.pull(agent.slots - len(self.claims[agent.name])), named)
                for claim in answer["runs"]:
                    self.since[claim["lease"]] = self.now_s
                    self.claims[agent.name].append(claim)
            for _ in range(AGENTS * 3):
                self.begin()
                self.end()
            self.here.advance(2.0, step=1.0)
            if all(self.here.task(task)["state"] in FINAL for task in self.tasks):
                break
        self.look()


def test_every_promise_is_kept_and_every_task_ends(tmp_path: Path, seed: int) -> None:
    with master_here(tmp_path / "m", manual=True) as here:
        life = Life(here, seed)
        life.live()
        life.settle()
        for task in life.tasks:
            view = here.task(task)
            assert view["state"] in FINAL, (view, [here.web("explain_run", run["id"]) for run in here.runs(task)])
            life.history.present[task["id"]] = len(here.runs(task))
        assert check(life.history) == []
