"""A master that keeps everything in memory and speaks the real protocol: `RpcServer`, CURVE keys, the agent's door.

It lies at no place where an agent could notice: leases are checked, a begin is a barrier, output has offsets, results
need their output. What a test may do to it: offer runs, cancel them, take leases away, forget sessions, lose the
answer of a call that was carried out, cut the link, stop and start it. What a test sees: every call, every run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gevent.event import Event

from common import auth
from common.errors import Forbidden, MusterError, NotFound, StaleLease, Unauthorized, UnknownKey
from common.ids import lease_token, secret_token, uuid7
from common.model import Ending, TaskSpec
from common.rpc import Method, Peer, RpcServer
from common.wire import from_wire, pack
from tests.support.link import Link

TERMS = {
    "heartbeat_s": 0.5,
    "heartbeat_idle_s": 1.0,
    "lease_s": 60.0,
    "begin_lease_s": 15.0,
    "pull_wait_s": 20.0,
    "output_chunk": 256 * 1024,
    "output_window": 4,
}
PIECE = 256 * 1024


@dataclass
class FakeRun:
    """One run, as the master sees it."""

    run_id: str
    script: bytes
    spec: TaskSpec
    spec_bytes: bytes  # what is sent
    agent: str | None = None  # public key of the only agent that may have it; None: any
    state: str = "ready"  # ready, leased, running, ended
    attempt: int = 1
    lease: str | None = None
    holder: str | None = None
    fence: int | None = None
    begins: int = 0  # begins that were allowed, repeats not counted
    cancel: str | None = None
    endings: list[Ending] = field(default_factory=list)  # results that were stored
    late: list[Ending] = field(default_factory=list)
    repeats: int = 0
    output: bytearray = field(default_factory=bytearray)  # kept bytes, in order
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    acked: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (monotonic second, size) of each stored chunk

    @property
    def ending(self) -> Ending:
        """The one result."""
        assert len(self.endings) == 1, f"{len(self.endings)} results were stored"
        return self.endings[0]


@dataclass
class FakeAgent:
    """An agent the master knows, by its key."""

    agent_id: str
    name: str
    session: str | None = None
    pull: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    beats: list[float] = field(default_factory=list)


class FakeMaster:
    """See the module. Start it with `with`."""

    def __init__(self, **terms: float) -> None:
        self.keys = auth.new_key_pair()
        self.terms = {**TERMS, **terms}
        self.runs: dict[str, FakeRun] = {}
        self.agents: dict[str, FakeAgent] = {}  # by public key
        self.calls: list[tuple[str, Any]] = []
        self.inline_script = 64 * 1024
        self.slow = False
        self.draining = False
        self.slots: int | None = None  # set by a person
        self.need_output_once = False
        self._tokens: dict[str, str | None] = {}
        self._changed = Event()
        self._losing: dict[str, int] = {}
        self._failing: dict[str, list[MusterError]] = {}
        self._holding: dict[str, Event] = {}
        self._fences = 0
        self._server = self._new_server("tcp://127.0.0.1:0")
        self.link: Link

    # -- what tests do -------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeMaster:
        self._server.start()
        self.link = Link(self._address())
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self._server.stop()

    @property
    def endpoint(self) -> str:
        """What an agent connects to: through a link that can be cut."""
        return f"tcp://{self.link.address}"

    def trust(self, public_key: str, *, name: str = "agent-1") -> FakeAgent:
        """Let this key register, as `muster up` does for local agents."""
        agent = self.agents[public_key] = FakeAgent(uuid7(), name)
        return agent

    def token(self) -> str:
        """A join token."""
        secret = secret_token()
        self._tokens[secret] = None
        return auth.encode_join_token(
            auth.JoinToken(endpoint=self.endpoint, server_key=self.keys.public_text, secret=secret)
        )

    def offer(self, script: str | bytes, **spec: Any) -> FakeRun:
        """A run for whoever pulls; `spec` are fields of TaskSpec."""
        body = script.encode() if isinstance(script, str) else script
        task = TaskSpec(script_sha256=hashlib.sha256(body).hexdigest(), script_size=len(body), **spec)
        run = FakeRun(uuid7(), body, task, pack(task))
        self.runs[run.run_id] = run
        self._pulse()
        return run

    def cancel(self, run: FakeRun, why: str = "request") -> None:
        """Ask for the end of a running run, through the parked pull or the next heartbeat."""
        run.cancel = why
        self._pulse()

    def take_away(self, run: FakeRun) -> None:
        """Its lease is gone: whoever holds it is told that it is stale."""
        run.lease, run.holder, run.state = None, None, "ended"
        self._pulse()

    def restart(self) -> None:
        """Stop and start again at the same address; sessions are forgotten, runs are not."""
        self._server.stop()
        for agent in self.agents.values():
            agent.session, agent.pull = None, 0
        self._server = self._new_server("tcp://127.0.0.1:0")  # the old port is let go of a little later
        self._server.start()
        self.link.target = self._address()

    def lose_answers(self, method: str, count: int = 1) -> None:
        """Carry out the next `count` calls of `method`, but cut the connection before their answers leave."""
        self._losing[method] = count

    def fail(self, method: str, *errors: MusterError) -> None:
        """Answer the next calls of `method` with these errors, without carrying them out."""
        self._failing.setdefault(method, []).extend(errors)

    @contextmanager
    def holding(self, method: str) -> Iterator[None]:
        """Calls of `method` wait at the door meanwhile."""
        gate = self._holding[method] = Event()
        try:
            yield
        finally:
            del self._holding[method]
            gate.set()

    def wait_for(self, condition: Callable[[], Any], *, timeout_s: float = 20.0, what: str = "") -> Any:
        """Wait until `condition()` is true; it is looked at after every call. Returns its value."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._changed.clear()
            value = condition()
            if value:
                return value
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{what or 'the condition'} did not come about in {timeout_s:g} s: {self.runs}")
            self._changed.wait(timeout=min(left_s, 1.0))

    def wait_ended(self, *runs: FakeRun, timeout_s: float = 20.0) -> None:
        """Wait until each of these has its result."""
        self.wait_for(lambda: all(run.endings for run in runs), timeout_s=timeout_s, what="the result")

    def count(self, method: str) -> int:
        """How many calls of `method` came."""
        return sum(1 for name, _ in self.calls if name == method)

    def _address(self) -> tuple[str, int]:
        host, port = self._server.endpoint.removeprefix("tcp://").rsplit(":", 1)
        return host, int(port)

    # -- the server ----------------------------------------------------------------------------------------------------

    def _new_server(self, endpoint: str) -> RpcServer:
        table = {
            name: Method(self._door(name, getattr(self, f"_{name}")), on_unroutable=self._take_back)
            for name in (
                "enrol", "register", "heartbeat", "pull_task", "begin", "release", "output", "result", "blob",
            )
        }  # fmt: skip
        return RpcServer(
            endpoint,
            table,
            secret_key=self.keys.secret,
            public_key=self.keys.public,
            authorize=self._authorize,
            max_message_bytes=2 * 1024 * 1024,
            max_pending_per_peer=16,
        )

    def _authorize(self, peer: Peer, method: str) -> None:
        if peer.key not in self.agents and method != "enrol":
            raise UnknownKey()

    def _door(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(peer: Peer, *args: Any) -> Any:
            gate = self._holding.get(name)
            if gate is not None:
                gate.wait()
            failing = self._failing.get(name)
            if failing:
                raise failing.pop(0)
            self.calls.append((name, args))
            answer = fn(peer, *args)
            self._pulse()
            if self._losing.get(name, 0) > 0:
                self._losing[name] -= 1
                self.link.cut()
                self.link.restore()
            return answer

        return call

    def _pulse(self) -> None:
        self._changed.set()

    # -- methods of the agent door -------------------------------------------------------------------------------------

    def _enrol(self, peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
        assert peer.key is not None
        known = self.agents.get(peer.key)
        used_by = self._tokens.get(request["secret"], "nobody")
        if used_by == "nobody":
            raise Unauthorized("This join token is not known: make a new one with `muster agent-token`.")
        if used_by is None:
            self._tokens[request["secret"]] = peer.key
        elif used_by != peer.key or known is None:
            raise Forbidden("This join token was used by another agent: make a new one with `muster agent-token`.")
        agent = known or self.trust(peer.key, name=request.get("name") or request["hostname"])
        return {"agent_id": agent.agent_id, "name": agent.name}

    def _register(self, peer: Peer, about: dict[str, Any]) -> dict[str, Any]:
        agent = self._agent(peer)
        agent.session, agent.about, agent.pull = about["session"], about, 0
        named = {(run_id, lease) for run_id, _, lease in about["held"] + about["ended"]}
        running = [
            [run.run_id, run.attempt, run.lease, run.acked]
            for run in self.runs.values()
            if run.holder == peer.key and run.state == "running"
        ]
        drop = [
            run_id
            for run_id, lease in named
            if self.runs[run_id].lease != lease and self.runs[run_id].state in ("ready", "leased")
        ]
        return {
            "agent_id": agent.agent_id, "name": agent.name, "settings": self.terms, "running": running, "drop": drop,
            "slots": self.slots or about["slots"],
        }  # fmt: skip

    def _heartbeat(self, peer: Peer, beat: dict[str, Any]) -> dict[str, Any]:
        agent = self._agent(peer)
        agent.beats.append(time.monotonic())
        if beat["session"] != agent.session:
            return {"cancel": [], "stale": [], "register": True, "draining": False}
        slots = self.slots or agent.about["slots"]
        return {**self._orders(peer, beat["held"]), "register": False, "draining": self.draining, "slots": slots}

    def _orders(self, peer: Peer, held: list[list[str]]) -> dict[str, Any]:
        stale = [run_id for run_id, lease in held if self.runs[run_id].lease != lease]
        cancel = [
            [run.run_id, run.cancel]
            for run in self.runs.values()
            if run.cancel is not None and run.state == "running" and run.holder == peer.key
        ]
        return {"cancel": cancel, "stale": stale}

    def _pull_task(self, peer: Peer, ask: dict[str, Any]) -> dict[str, Any]:
        agent = self._agent(peer)
        if ask["session"] != agent.session:
            return {"runs": [], "cancel": [], "stale": [], "register": True}
        agent.pull = max(agent.pull, ask["pull"])
        held = {(run_id, lease) for run_id, lease in ask["held"]}
        for run in self.runs.values():
            if run.state == "leased" and run.holder == peer.key and (run.run_id, run.lease) not in held:
                run.state, run.lease, run.holder = "ready", None, None
        told = {run_id for run_id, _ in self._orders(peer, ask["held"])["cancel"]}
        deadline = time.monotonic() + ask["wait_s"]
        while True:
            self._changed.clear()
            orders = self._orders(peer, ask["held"])
            orders["cancel"] = [one for one in orders["cancel"] if one[0] not in told]
            claims = [] if agent.pull != ask["pull"] else self._claim(peer, ask["free_slots"])
            left_s = deadline - time.monotonic()
            if claims or orders["cancel"] or orders["stale"] or left_s <= 0 or agent.pull != ask["pull"]:
                return {"runs": claims, **orders, "register": False}
            self._changed.wait(timeout=min(left_s, 0.5))

    def _take_back(self, peer: Peer, method: str, answer: Any) -> None:
        """The answer cannot reach its caller: what it granted is free again."""
        for claim in answer["runs"] if method == "pull_task" else ():
            run = self.runs[claim["run_id"]]
            if run.state == "leased" and run.lease == claim["lease"]:
                run.state, run.lease, run.holder = "ready", None, None
        self._pulse()

    def _claim(self, peer: Peer, free_slots: int) -> list[dict[str, Any]]:
        claims = []
        for run in self.runs.values():
            if len(claims) < free_slots and run.state == "ready" and run.agent in (None, peer.key):
                run.state, run.lease, run.holder = "leased", lease_token(), peer.key
                inline = len(run.script) <= self.inline_script
                claims.append(
                    {
                        "run_id": run.run_id,
                        "task_id": uuid7(),
                        "attempt": run.attempt,
                        "lease": run.lease,
                        "spec": run.spec_bytes,
                        "script": run.script if inline else None,
                    }
                )
        return claims

    def _begin(self, peer: Peer, runs: list[list[str]]) -> list[dict[str, Any]]:
        return [self._begin_one(peer, run_id, lease) for run_id, lease in runs]

    def _begin_one(self, peer: Peer, run_id: str, lease: str) -> dict[str, Any]:
        run = self.runs[run_id]
        if run.lease != lease or run.holder != peer.key or run.state not in ("leased", "running"):
            return {"run_id": run_id, "ok": False, "why": "the lease is no longer held"}
        if run.state == "leased":
            self._fences += 1
            run.state, run.fence = "running", self._fences
            run.begins += 1
        elif run.cancel is not None:
            return {"run_id": run_id, "ok": False, "why": "the run is being cancelled"}
        return {"run_id": run_id, "ok": True, "fence": run.fence}

    def _release(self, peer: Peer, runs: list[list[str]]) -> bool:
        for run_id, lease in runs:
            run = self.runs[run_id]
            if run.state == "leased" and run.lease == lease:
                run.state, run.lease, run.holder = "ready", None, None
        return True

    def _output(self, peer: Peer, chunks: list[dict[str, Any]]) -> dict[str, Any]:
        acked: dict[str, int] = {}
        for chunk in chunks:
            run = self.runs[chunk["run_id"]]
            if run.lease != chunk["lease"] or run.state != "running":
                # It has no place here, and is acknowledged so that it is not sent for ever.
                acked[run.run_id] = chunk["offset"] + chunk.get("gap", len(chunk.get("data", b"")))
                continue
            if chunk["offset"] == run.acked:
                self._store(run, chunk)
            acked[run.run_id] = run.acked
        return {"acked": acked, "slow": self.slow}

    def _store(self, run: FakeRun, chunk: dict[str, Any]) -> None:
        if "gap" in chunk:
            run.gaps.append((chunk["offset"], chunk["gap"]))
            run.acked += chunk["gap"]
            return
        data = chunk["data"]
        assert isinstance(data, bytes) and data and len(data) <= self.terms["output_chunk"]
        assert sum(length for _, length in chunk["segments"]) == len(data)
        at = 0
        for stream, length in chunk["segments"]:
            {1: run.stdout, 2: run.stderr}[stream].extend(data[at : at + length])
            at += length
        run.output += data
        run.acked += len(data)
        run.arrivals.append((time.monotonic(), len(data)))

    def _result(self, peer: Peer, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self._result_one(peer, result) for result in results]

    def _result_one(self, peer: Peer, result: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[result["run_id"]]
        ending = from_wire(Ending, result["ending"])
        if run.lease == result["lease"] and run.state == "running":
            if run.acked < ending.output_bytes or self.need_output_once:
                self.need_output_once = False
                return {"run_id": run.run_id, "taken": "need_output", "acked": run.acked}
            run.state = "ended"
            run.endings.append(ending)
            return {"run_id": run.run_id, "taken": "stored"}
        if run.lease == result["lease"] and run.endings:
            run.repeats += 1
            return {"run_id": run.run_id, "taken": "repeat"}
        run.late.append(ending)
        return {"run_id": run.run_id, "taken": "late"}

    def _blob(self, peer: Peer, sha256: str, offset: int) -> dict[str, Any]:
        for run in self.runs.values():
            if run.spec.script_sha256 == sha256:
                return {"size": len(run.script), "data": run.script[offset : offset + PIECE]}
        raise NotFound("There is no such script for this agent.")

    def _agent(self, peer: Peer) -> FakeAgent:
        assert peer.key is not None
        agent = self.agents.get(peer.key)
        if agent is None:
            raise StaleLease()
        return agent
