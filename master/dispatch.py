"""Handing out work: the pull with its claims, the begin barrier, and giving back.

A pull claims in the store and waits only when there was nothing; what wakes it carries nothing. A claim whose answer
cannot have arrived (unroutable, superseded, not named by the next pull) goes back to ready at once. `begin` is
answered after its commit, and refuses whatever was cancelled, stopped or paused since the claim.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from common import faults
from common.config import Settings
from common.errors import MusterError, NotAllowed, StaleLease
from common.ids import lease_token
from common.model import AgentState, Ending, Outcome, Run, RunState
from master.agents import Agents
from master.asks import PullAsk
from master.blobs import Submissions
from master.leases import Held, Leases
from master.ledger import Ledger
from master.lifecycle import Begin, Cancel, Claim, Expire, Finish, Release, Skip
from master.matching import begin_verdict, task_verdict
from master.presence import Presence
from master.runs import Change
from master.waiting import Pull, Pulls

_MET_MOST = 300
"""Offers one transaction looks at: a row of closed tasks at the head must not hold the writer long."""

_CLAIM_EXTRA = 400
"""Bytes of a claim beside its spec and script, generously."""


_NEVER_FORKED = Ending(
    outcome=Outcome.REFUSED, detail="it was cancelled before its agent learned that it might begin; nothing ran"
)


class Dispatch:
    """The use-cases of agents that want work."""

    def __init__(
        self, ledger: Ledger, agents: Agents, leases: Leases, pulls: Pulls, submissions: Submissions, settings: Settings
    ) -> None:
        self._ledger = ledger
        self._agents = agents
        self._leases = leases
        self._pulls = pulls
        self._submissions = submissions
        self._settings = settings

    # -- pull ----------------------------------------------------------------------------------------------------------

    def pull(self, presence: Presence, ask: PullAsk, *, remaining_s: float | None = None) -> dict[str, Any]:
        """The answer of `pull_task`; waits for work, but not beyond `remaining_s`."""
        if presence.session != ask.session:
            return {"runs": [], "cancel": [], "stale": [], "register": True}
        agent = presence.agent
        self._agents.heard(presence, holding=bool(ask.held))
        stale = presence.untold_stale(self._leases.renew(agent.id, ask.held, now_s=presence.heard_s))
        queues = None if agent.queues is None else frozenset(agent.queues)
        pull = self._pulls.enter(
            agent.id,
            session=ask.session,
            number=ask.pull,
            queues=queues,
            free_slots=ask.free_slots,
            able=lambda: _able(presence),
        )
        wait_s = min(ask.wait_s, self._settings.pull_wait * 1.5)
        if remaining_s is not None:
            wait_s = min(wait_s, remaining_s - 0.5)
        try:
            runs, cancel = self._work(pull, presence, ask, wait_s=0.0 if stale else wait_s)
            claims = self._claims(agent.id, runs)
            if claims and pull.superseded:  # while the scripts were read
                self.give_back(agent.id, [(run.id, run.lease or "") for run in runs])
                claims = []
        finally:
            self._pulls.leave(pull)
        return {"runs": claims, "cancel": cancel, "stale": stale, "register": False}

    def _work(
        self, pull: Pull, presence: Presence, ask: PullAsk, *, wait_s: float
    ) -> tuple[list[Run], list[tuple[str, str]]]:
        agent_id = presence.agent.id
        unnamed = [(lease.run_id, lease.token) for lease in self._leases.unnamed(agent_id, ask.held)]
        until = time.monotonic() + wait_s
        while True:
            pull.ready()
            cancel = [] if pull.superseded else self._leases.cancels(agent_id, untold=True)
            runs = self._claim(pull, presence, ask.free_slots, unnamed)
            unnamed = []
            if pull.superseded and runs:
                self.give_back(agent_id, [(run.id, run.lease or "") for run in runs])
                runs = []
            left_s = until - time.monotonic()
            if runs or cancel or pull.superseded or left_s <= 0:
                return runs, cancel
            pull.wait(left_s)

    def _claim(self, pull: Pull, presence: Presence, free_slots: int, unnamed: list[tuple[str, str]]) -> list[Run]:
        agent_id = presence.agent.id
        allowed = presence.agent.slots_set
        if allowed is not None:  # the agent may not know of it; else it knows its free slots best
            free_slots = min(free_slots, allowed - self._leases.held_by(agent_id) + len(unnamed))
        pull.capped = allowed is not None
        pull.free_slots = free_slots
        most = free_slots if _able(presence) and not pull.superseded else 0
        runs: list[Run] = []
        more = most > 0 or bool(unnamed)
        while more:
            tokens = [lease_token() for _ in range(most - len(runs))]
            give_back, unnamed = unnamed, []

            def claim(change: Change, back: Held = give_back, tokens: list[str] = tokens) -> tuple[list[Run], bool]:
                for run_id, token in back:
                    _give_back(change, agent_id, run_id, token)
                return take(change, agent_id, pull.queues, tokens)

            taken, more = self._ledger.change(claim)
            runs += taken
        for run in runs:
            if run.addressed:
                self._pulls.served(run.task_id or "", agent_id)
        if runs:
            faults.at("after-claim-commit")
        return runs

    def _claims(self, agent_id: str, runs: Sequence[Run]) -> list[dict[str, Any]]:
        """The claims of these runs, as many as one message holds; the others go back. One that no message can hold ends
        here: it would come back for ever, and hold up all behind it."""
        claims: list[dict[str, Any]] = []
        left = most = self._settings.agent_message * 3 // 4
        for number, run in enumerate(runs):
            submission = self._submissions.of(run.task_id or "")
            size = len(submission.raw) + _CLAIM_EXTRA
            if size > most:
                self._refuse(run, f"its arguments and environment take {size} bytes, one message holds {most}")
                continue
            script = self._submissions.inline_script(submission.spec)
            if script is not None and size + len(script) > most:
                script = None  # the agent fetches it
            left -= size + len(script or b"")
            if left < 0:
                self.give_back(agent_id, [(other.id, other.lease or "") for other in runs[number:]])
                break
            claims.append(
                {
                    "run_id": run.id,
                    "task_id": run.task_id,
                    "attempt": run.attempt,
                    "lease": run.lease,
                    "spec": submission.raw,
                    "script": script,
                }
            )
        return claims

    def _refuse(self, run: Run, why: str) -> None:
        """End a claimed run that its agent can never be told of."""
        ending = Ending(outcome=Outcome.REFUSED, detail=f"{why}. Pass less, or raise the setting agent_message.")
        token = run.lease or ""

        def refuse(change: Change) -> None:
            stored = change.tx.get_run(run.id)
            if stored is not None and stored.state is RunState.LEASED and stored.lease == token:
                begun = change.move(stored, Begin(lease=token, fence=change.tx.commit_seq))
                change.move(begun, Finish(lease=token, ending=ending))

        self._ledger.change(refuse)

    # -- begin and give back -------------------------------------------------------------------------------------------

    def begin(self, agent_id: str, runs: Held) -> list[dict[str, Any]]:
        """Which of these claimed runs may be forked now, and with what fence."""
        answers = self._ledger.change(lambda change: [_begin(change, agent_id, run, token) for run, token in runs])
        faults.at("after-begin-commit")
        return answers

    def give_back(self, agent_id: str, runs: Held) -> None:
        """Claimed runs that were not begun go back to ready; others are left alone."""
        if runs:

            def release(change: Change) -> None:
                for run_id, token in runs:
                    _give_back(change, agent_id, run_id, token)

            self._ledger.change(release)

    def unroutable(self, agent_id: str, answer: Any) -> None:
        """The answer of a pull cannot reach its agent: take back what it granted."""
        self.give_back(agent_id, [(claim["run_id"], claim["lease"]) for claim in answer["runs"]])


def _able(presence: Presence) -> bool:
    """Whether the agent gets new work now."""
    return presence.state is AgentState.ONLINE and not presence.leaving


def take(change: Change, agent_id: str, queues: frozenset[str] | None, tokens: Sequence[str]) -> tuple[list[Run], bool]:
    """Claim up to one run for each token, the smallest (priority, seq) first; True: there may be more to look at."""
    taken: list[Run] = []
    met = 0
    while len(taken) < len(tokens):
        heads = change.tx.heads(agent_id, queues, limit=len(tokens) - len(taken))
        if not heads:
            return taken, False
        for offer in heads:
            task = change.task(offer.task_id)
            run = None
            if task is not None and task_verdict(task).may:
                run = change.tx.claimable(task.id, agent_id)
            elif task is not None:
                change.close(task)
            if run is None:
                change.tx.withdraw(offer)  # closed: it comes back in the transaction that makes room
            elif run.expires_engine_s is not None and run.expires_engine_s <= change.now.engine_s:
                change.move(run, Expire())  # the keeper has not come to it yet
            else:
                taken.append(change.move(run, Claim(agent_id, tokens[len(taken)])))
        met += len(heads)
        if met >= _MET_MOST:
            return taken, len(taken) < len(tokens)
    return taken, False


def _begin(change: Change, agent_id: str, run_id: str, token: str) -> dict[str, Any]:
    run = change.tx.get_run(run_id)
    if run is None or run.agent_id != agent_id:
        return _refusal(run_id, "this run is not this agent's")
    try:
        if run.state is RunState.LEASED and run.lease == token:
            task = change.task(run.task_id or "")
            verdict = begin_verdict(task) if task is not None else None
            if task is not None and verdict is not None and not verdict.may:
                if task.cancel_requested:
                    change.move(run, Cancel())
                else:
                    change.move(run, Skip() if task.stopped else Release(token))
                return _refusal(run_id, verdict.text)
        elif run.state is RunState.RUNNING and run.lease == token and run.cancel_reason is not None:
            # An agent asks again only while it has not forked: the answer was lost, and nobody else would end the run.
            change.move(run, Finish(lease=token, ending=_NEVER_FORKED))
            return _refusal(run_id, "this run was cancelled")
        begun = change.move(run, Begin(lease=token, fence=change.tx.commit_seq))
    except MusterError as error:
        return _refusal(run_id, error.message)
    return {"run_id": run_id, "ok": True, "fence": begun.fence}


def _refusal(run_id: str, why: str) -> dict[str, Any]:
    return {"run_id": run_id, "ok": False, "why": why}


def _give_back(change: Change, agent_id: str, run_id: str, token: str) -> None:
    run = change.tx.get_run(run_id)
    if run is not None and run.agent_id == agent_id:
        try:
            change.move(run, Release(token))
        except (StaleLease, NotAllowed):
            pass  # it has gone on: begun, cancelled, or leased anew
