"""The webservers' door: the table of methods that webservers may call, and the shape of their arguments. No logic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gevent.event import Event

from common.model import TASK_FINAL_STATES, Task
from common.requests import from_map
from common.rpc import Method, Peer
from common.wire import from_wire
from master.access import Access
from master.agents import Agents
from master.answers import Answers
from master.blobs import Submissions
from master.enrolment import Enrolment
from master.events import Feed
from master.ledger import Ledger
from master.metrics import Metrics, Readiness
from master.output import OutputStore
from master.overview import Overview
from master.preview import Previews
from master.tasks import SubmitMeta, Tasks
from master.verify import verify
from master.waiting import Waits

WAIT_MOST_S = 60.0
_NAME_MOST = 200


class WebDoor:
    """The methods; `table()` is what the server gets. `stopping` is set when waits must end."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        access: Access,
        tasks: Tasks,
        previews: Previews,
        answers: Answers,
        agents: Agents,
        enrolment: Enrolment,
        submissions: Submissions,
        output: OutputStore,
        feed: Feed,
        waits: Waits,
        metrics: Metrics,
        readiness: Readiness,
        overview: Overview,
        stopping: Event,
    ) -> None:
        self._ledger = ledger
        self._access = access
        self._tasks = tasks
        self._previews = previews
        self._answers = answers
        self._agents = agents
        self._enrolment = enrolment
        self._submissions = submissions
        self._output = output
        self._feed = feed
        self._waits = waits
        self._metrics = metrics
        self._readiness = readiness
        self._overview = overview
        self._stopping = stopping

    def table(self) -> Mapping[str, Method]:
        """Name → method."""
        waiting = (
            self.add_task, self.preview_task, self.get_task, self.get_script, self.list_tasks, self.cancel_task,
            self.pause_task, self.resume_task, self.retry_task, self.list_runs, self.get_run, self.list_attempts,
            self.list_groups, self.cancel_run, self.explain_run, self.read_output, self.list_agents, self.get_agent,
            self.get_agents, self.agent_samples, self.agent_runs,
            self.patch_agent, self.drain_agent, self.resume_agent, self.revoke_agent, self.forget_agent,
            self.add_agent_token, self.add_login_link, self.log_in, self.log_out, self.list_tokens, self.add_token,
            self.revoke_token, self.feed, self.verify, self.ready, self.metrics, self.overview, self.fleet,
        )  # fmt: skip
        methods = {method.__name__: Method(method) for method in waiting}
        methods |= {method.__name__: Method(method, inline=True) for method in (self.check_token, self.check_session)}
        return methods

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def add_task(self, peer: Peer, request: Any, meta: Any) -> dict[str, Any]:
        """Submit; with `wait_s`, answer when the task is final or after that long."""
        told = from_wire(SubmitMeta, meta)
        task, runs, created = self._tasks.add(from_map(request), told)
        if told.wait_s > 0:
            view = self._when_final(task.id, told.wait_s, fresh=created)
        elif created:
            view = self._answers.fresh_task(task, runs)
        else:
            view = self._answers.task(task.id)[1]
        return {"task": view, "created": created}

    def preview_task(self, peer: Peer, request: Any) -> dict[str, Any]:
        """What a submit would do; nothing is stored."""
        return self._previews.preview(from_map(request))

    def get_task(self, peer: Peer, task_id: Any, wait_s: Any = 0) -> dict[str, Any]:
        """A task, now or when it is final."""
        whole = self._task_id(task_id)
        return self._when_final(whole, from_wire(float, wait_s or 0.0))

    def _when_final(self, task_id: str, wait_s: float, *, fresh: bool = False) -> dict[str, Any]:
        """The task's view when it is final, or after so long; a `fresh` one cannot be final before the first wake."""
        until = time.monotonic() + min(wait_s, WAIT_MOST_S)
        event = self._waits.enter(task_id)
        try:
            if fresh and not self._stopping.is_set():
                event.wait(until - time.monotonic())
            while True:
                event.clear()
                task, view = self._answers.task(task_id)
                left_s = until - time.monotonic()
                if task.state in TASK_FINAL_STATES or left_s <= 0 or self._stopping.is_set():
                    return view
                event.wait(left_s)
        finally:
            self._waits.leave(task_id, event)

    def get_script(self, peer: Peer, task_id: Any) -> dict[str, Any]:
        """The script's bytes."""
        return self._submissions.script(self._task_id(task_id))

    def list_tasks(self, peer: Peer, where: Any, limit: Any = 50, cursor: Any = None) -> dict[str, Any]:
        """A page of tasks."""
        wanted = from_wire(dict[str, Any], where or {})
        return self._answers.tasks(wanted, limit=from_wire(int, limit), cursor=_text(cursor))

    def cancel_task(self, peer: Peer, task_id: Any, by: Any = "") -> dict[str, Any]:
        """End a task; `by`: the name of whoever wants it."""
        return self._view(self._tasks.cancel(self._task_id(task_id), by=from_wire(str, by)[:_NAME_MOST]))

    def pause_task(self, peer: Peer, task_id: Any) -> dict[str, Any]:
        """Start nothing more of a task for now."""
        return self._view(self._tasks.pause(self._task_id(task_id)))

    def resume_task(self, peer: Peer, task_id: Any) -> dict[str, Any]:
        """Let a paused task go on."""
        return self._view(self._tasks.resume(self._task_id(task_id)))

    def retry_task(self, peer: Peer, task_id: Any, only: Any = "failed") -> dict[str, Any]:
        """Reopen a final task."""
        return self._view(self._tasks.retry(self._task_id(task_id), from_wire(str, only)))

    def _view(self, task: Task) -> dict[str, Any]:
        return self._answers.task(task.id)[1]

    def _task_id(self, text: Any) -> str:
        return self._answers.task_id(from_wire(str, text))

    # -- runs ----------------------------------------------------------------------------------------------------------

    def list_runs(
        self, peer: Peer, task_id: Any, state: Any = None, limit: Any = 50, cursor: Any = None, agent: Any = None
    ) -> dict[str, Any]:
        """A page of a task's runs."""
        return self._answers.runs(
            self._task_id(task_id),
            state,
            limit=from_wire(int, limit),
            cursor=_text(cursor),
            agent=_text(agent),
        )

    def get_run(self, peer: Peer, run_id: Any) -> dict[str, Any]:
        """A run."""
        return self._answers.run(self._run_id(run_id))

    def list_attempts(self, peer: Peer, run_id: Any) -> dict[str, Any]:
        """A run's attempts."""
        return self._answers.attempts(self._run_id(run_id))

    def list_groups(self, peer: Peer, task_id: Any) -> dict[str, Any]:
        """A task's runs by identical outcome."""
        return self._answers.groups(self._task_id(task_id))

    def cancel_run(self, peer: Peer, run_id: Any) -> dict[str, Any]:
        """End one run."""
        return self._answers.run(self._tasks.cancel_run(self._run_id(run_id)).id)

    def explain_run(self, peer: Peer, run_id: Any) -> dict[str, Any]:
        """Why a run is where it is."""
        return self._answers.explain(self._run_id(run_id))

    def read_output(
        self, peer: Peer, run_id: Any, attempt: Any = None, stream: Any = "all", offset: Any = 0, limit: Any = 65536
    ) -> dict[str, Any]:
        """Output of an attempt."""
        return self._answers.output(
            self._run_id(run_id),
            from_wire(int | None, attempt),  # type: ignore[arg-type]
            from_wire(str, stream or "all"),
            offset=max(0, from_wire(int, offset)),
            limit=from_wire(int, limit),
        )

    def _run_id(self, text: Any) -> str:
        return self._answers.run_id(from_wire(str, text))

    # -- agents --------------------------------------------------------------------------------------------------------

    def list_agents(self, peer: Peer, limit: Any = 50, cursor: Any = None, where: Any = None) -> dict[str, Any]:
        """A page of agents."""
        wanted = from_wire(dict[str, Any], where or {})
        return self._answers.agents(limit=from_wire(int, limit), cursor=_text(cursor), where=wanted)

    def get_agent(self, peer: Peer, agent: Any) -> dict[str, Any]:
        """An agent."""
        return self._answers.agent(self._agents.find(from_wire(str, agent)).agent.id)

    def get_agents(self, peer: Peer, agent_ids: Any) -> dict[str, Any]:
        """Those of these agents that are known."""
        return {"items": self._answers.known_agents(from_wire(list[str], agent_ids))}

    def agent_samples(self, peer: Peer, agent: Any) -> dict[str, Any]:
        """The last hour of an agent's load."""
        return self._agents.samples(from_wire(str, agent))

    def agent_runs(
        self, peer: Peer, agent: Any, limit: Any = 50, cursor: Any = None, ended: Any = None
    ) -> dict[str, Any]:
        """A page of an agent's runs."""
        return self._answers.agent_runs(
            self._agents.find(from_wire(str, agent)).agent.id,
            limit=from_wire(int, limit),
            cursor=_text(cursor),
            ended=None if ended is None else from_wire(bool, ended),
        )

    def patch_agent(self, peer: Peer, agent: Any, changes: Any) -> dict[str, Any]:
        """Set labels or slots."""
        presence = self._agents.patch(from_wire(str, agent), from_wire(dict[str, Any], changes))
        return self._answers.agent(presence.agent.id)

    def drain_agent(self, peer: Peer, agent: Any) -> dict[str, Any]:
        """Give an agent nothing new."""
        return self._answers.agent(self._agents.drain(from_wire(str, agent)).agent.id)

    def resume_agent(self, peer: Peer, agent: Any) -> dict[str, Any]:
        """Give a drained agent work again."""
        return self._answers.agent(self._agents.resume(from_wire(str, agent)).agent.id)

    def revoke_agent(self, peer: Peer, agent: Any) -> dict[str, Any]:
        """Refuse an agent's key from now on."""
        return self._answers.agent(self._agents.revoke(from_wire(str, agent)).agent.id)

    def forget_agent(self, peer: Peer, agent: Any) -> bool:
        """Remove an offline agent."""
        self._agents.forget(from_wire(str, agent))
        return True

    def add_agent_token(self, peer: Peer) -> dict[str, Any]:
        """A join token."""
        return self._enrolment.add_join_token()

    # -- who may use it ------------------------------------------------------------------------------------------------

    def check_token(self, peer: Peer, sha256: Any) -> dict[str, str]:
        """Whose API token this is."""
        return self._access.check_token(from_wire(str, sha256))

    def check_session(self, peer: Peer, sha256: Any) -> dict[str, str]:
        """Whose session this is."""
        return self._access.check_session(from_wire(str, sha256))

    def add_login_link(self, peer: Peer, name: Any, by: Any = "") -> dict[str, Any]:
        """A permission to log in once."""
        return self._access.add_login_link(from_wire(str, name), from_wire(str, by))

    def log_in(self, peer: Peer, secret: Any, address: Any, about: Any = "") -> dict[str, Any]:
        """Use up a login link."""
        return self._access.log_in(from_wire(str, secret), from_wire(str, address), from_wire(str, about))

    def log_out(self, peer: Peer, sha256: Any) -> bool:
        """End a session."""
        return self._access.log_out(from_wire(str, sha256))

    def list_tokens(self, peer: Peer) -> dict[str, Any]:
        """Tokens and sessions."""
        return self._access.list_tokens()

    def add_token(self, peer: Peer, name: Any, by: Any = "") -> dict[str, Any]:
        """A new API token."""
        return self._access.add_token(from_wire(str, name), from_wire(str, by))

    def revoke_token(self, peer: Peer, token_id: Any, by: Any = "") -> bool:
        """Refuse a token, or end a session."""
        return self._access.revoke_token(from_wire(str, token_id), from_wire(str, by))

    # -- the master itself ---------------------------------------------------------------------------------------------

    def feed(self, peer: Peer, after: Any, wait_s: Any = 0, limit: Any = 500) -> dict[str, Any]:
        """The change feed."""
        wait = min(from_wire(float, wait_s), WAIT_MOST_S)
        return self._feed.read(from_wire(int, after), wait_s=wait, limit=from_wire(int, limit))

    def verify(self, peer: Peer) -> dict[str, Any]:
        """Check the store."""
        return verify(self._ledger.store, self._output)

    def fleet(self, peer: Peer) -> dict[str, int]:
        """How many agents there are, by state, and their slots."""
        return self._overview.fleet()

    def overview(self, peer: Peer) -> dict[str, Any]:
        """What goes on, at a glance."""
        return self._overview.look()

    def ready(self, peer: Peer) -> dict[str, Any]:
        """Whether work can be accepted."""
        return self._readiness.look()

    def metrics(self, peer: Peer) -> str:
        """Prometheus text."""
        return self._metrics.text()


def _text(value: Any) -> str | None:
    return None if value is None else from_wire(str, value)
