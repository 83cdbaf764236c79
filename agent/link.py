"""The agent's side of being known to the master: register, heartbeat, register again, each with its reason in words.

The connection mends itself (`common.rpc`); this loop announces the agent over it. Promises: nobody's call goes out
before the master knows this session; a heartbeat is due by the clock and waits for nothing else; when the master
stops answering, the connection is made anew. `RUNNING` entries of a register's answer that nobody here knows are
handed to `on_unknown`, which reports them, so that the master never waits for a run that no host has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gevent.event import Event

from agent.attempt import AttemptKey
from agent.holdings import Holdings, pairs
from common import faults, log
from common.backoff import Backoff, spread_s
from common.clock import Clock
from common.config import Settings
from common.errors import CallTimeout, MusterError, PeerUnreachable, ProtocolError
from common.service import Loop

logger = logging.getLogger(__name__)

_REGISTER_TIMEOUT_S = 15.0
_ANSWER_LEAST_S, _ANSWER_MOST_S = 2.0, 10.0  # how long a heartbeat's answer is waited for: two intervals, within these
_NOT_KNOWN = (401, 403, 404, 409)  # statuses of errors that say who we are is in doubt
_SILENT_ANSWERS = 2  # heartbeats without an answer after which the connection is taken for dead


class Caller(Protocol):
    """The part of `common.rpc.RpcClient` that the link needs."""

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""

    @property
    def state(self) -> str:
        """The connection's state in one sentence."""

    def start(self) -> None:
        """Connect, and keep connected until `stop`."""

    def stop(self) -> None:
        """Close the connection."""

    def call(self, method: str, *args: Any, timeout_s: float, request_id: str | None = None) -> Any:
        """The answer of the peer's method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the master sets for its agents, in a register's answer; seconds, bytes and chunks."""

    heartbeat_s: float
    heartbeat_idle_s: float
    pull_wait_s: float
    output_chunk: int
    output_window: int

    @classmethod
    def of(cls, settings: Settings, told: dict[str, Any] | None = None) -> Terms:
        """The terms told by the master; what it left out, or this agent cannot use, comes from its own settings."""
        own: dict[str, float] = {
            "heartbeat_s": settings.heartbeat,
            "heartbeat_idle_s": settings.heartbeat_idle,
            "pull_wait_s": settings.pull_wait,
            "output_chunk": settings.output_chunk,
            "output_window": settings.output_window,
        }
        for name, value in (told or {}).items():
            if name in own and type(value) in (int, float) and value > 0:
                own[name] = value
        return cls(
            heartbeat_s=max(0.1, own["heartbeat_s"]),
            heartbeat_idle_s=max(0.1, own["heartbeat_idle_s"]),
            pull_wait_s=max(0.2, own["pull_wait_s"]),
            output_chunk=min(max(1024, int(own["output_chunk"])), settings.agent_message // 4),
            output_window=max(1, int(own["output_window"])),
        )


class MasterLink(Loop):
    """The session with the master. Wire it (`about`, `facts`, `on_…`) before `start`."""

    def __init__(self, client: Caller, *, session: str, settings: Settings, holdings: Holdings, clock: Clock) -> None:
        super().__init__("link", clock=clock)
        self.terms = Terms.of(settings)
        self.draining = False  # the master lets no new run come here
        self.about: Callable[[], dict[str, Any]] = dict  # what `register` says beside held, ended and session
        self.facts: Callable[[], dict[str, Any]] = dict
        self.on_registered: Callable[[dict[str, Any], set[AttemptKey]], None] = lambda answer, named: None
        self.on_ready: Callable[[], None] = lambda: None  # calls may go out again
        self.on_orders: Callable[[dict[str, Any], dict[str, str]], int] = lambda answer, leases: 0
        self.on_slots: Callable[[int], None] = lambda slots: None  # how many runs a person lets this agent have
        self.on_beat: Callable[[], None] = lambda: None
        self.session = session
        self._client = client
        self._settings = settings
        self._holdings = holdings
        self._registered = Event()
        self._backoff = Backoff(base_s=0.5, cap_s=15.0)
        self._complaint: str | None = None
        self._beat_at: float | None = None  # None: at once
        self._slots: int | None = None  # as the master last said
        self._unanswered = 0
        self._connections = 0  # changes of state so far

    @property
    def registered(self) -> bool:
        """Whether the master knows this session, as far as we know."""
        return self._registered.is_set()

    def wait_registered(self, *, timeout_s: float | None = None) -> bool:
        """Wait until `registered`, or for `timeout_s`; whether it is."""
        return bool(self._registered.wait(timeout=timeout_s))

    def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """The master's answer. Raises what `RpcClient.call` raises, `PeerUnreachable` also while not registered."""
        if not self.registered:
            raise PeerUnreachable(f"Not registered with the master: {self._client.state}.")
        return self._client.call(method, *args, timeout_s=timeout_s)

    def connection_changed(self, state: str) -> None:
        """To be called with every state of the connection (`on_state` of the client); never waits."""
        self._connections += 1
        if not self._client.connected and self.registered:
            self._registered.clear()
            log.change(logger, "link", from_="registered", to="down", level=logging.WARNING, reason=state)
        self.wake()

    def register_again(self) -> None:
        """The master does not know this session (it was restarted, say)."""
        if self.registered:
            self._registered.clear()
            log.change(logger, "link", from_="registered", to="unknown to the master")
            self.wake()

    def step(self, now: float) -> float | None:
        """Register, or send the heartbeat that is due."""
        if not self._client.connected:
            self.say(f"waiting for the master: {self._client.state}")
            return None
        if not self.registered:
            return self._register()
        due_s = self._due_s(now)
        if due_s > 0:
            return due_s
        self._beat_at = now
        self._beat()
        return self._due_s(self._clock.monotonic_s()) if self.registered else 0.0

    def _begin(self) -> None:
        self._client.start()
        super()._begin()

    def _end(self) -> None:
        # The connection first: it ends every call under way, ours included.
        self._client.stop()
        self._registered.clear()
        super()._end()

    def _due_s(self, now: float) -> float:
        if self._beat_at is None:
            return 0.0
        interval_s = self.terms.heartbeat_s if len(self._holdings) else self.terms.heartbeat_idle_s
        return max(0.0, self._beat_at + interval_s - now)

    # -- register ----------------------------------------------------------------------------------------------------

    def _register(self) -> float | None:
        self.say("registering")
        about = {
            **self.about(),
            "facts": self.facts(),
            "wall_ms": self._clock.wall_ms(),
            "session": self.session,
            "held": self._holdings.triples(ended=False),
            "ended": self._holdings.triples(ended=True),
        }
        connection = self._connections
        named = {(str(run_id), int(attempt)) for run_id, attempt, _ in [*about["held"], *about["ended"]]}
        try:
            answer = self._client.call("register", about, timeout_s=_REGISTER_TIMEOUT_S)
            if not isinstance(answer, dict):
                raise ProtocolError("The master's answer to register is not a map.")
        except PeerUnreachable:
            return None  # its end was, or will be, told by the connection
        except MusterError as error:
            return self._refused(error)
        faults.at("after-register")
        self.terms = Terms.of(self._settings, answer.get("settings"))
        self._take_slots(answer)
        self._backoff.reset()
        self._complaint = None
        self._unanswered = 0
        self._beat_at = None
        self.on_registered(answer, named)
        if connection != self._connections:
            return 0.0  # lost meanwhile; whatever is there now has not heard of us
        self._registered.set()
        log.change(
            logger, "link", from_="connected", to="registered",
            name=answer.get("name"), agent_id=answer.get("agent_id"), held=len(self._holdings) or None,
        )  # fmt: skip
        self.on_ready()
        self.signal("registered")
        return 0.0  # a heartbeat at once: it brings what the master wants ended

    def _refused(self, error: MusterError) -> float:
        # What a person has to mend is asked less often, but never given up: the mending may happen at the master.
        lasting = error.status in _NOT_KNOWN
        delay_s = spread_s(15.0) if lasting else self._backoff.next_s()
        self.say(f"the master refuses to register this agent: {error.message}")
        if self._complaint != error.message:
            self._complaint = error.message
            logger.warning(
                "not registered", extra=log.fields(code=error.code, reason=error.message, next_try_s=round(delay_s, 1))
            )
        return delay_s

    # -- heartbeat ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        leases = self._holdings.leases()
        beat = {
            "session": self.session,
            "facts": self.facts(),
            "wall_ms": self._clock.wall_ms(),
            "held": pairs(leases.items()),
        }
        try:
            answer = self._client.call("heartbeat", beat, timeout_s=self._answer_s())
        except CallTimeout:
            self._silence()
            return
        except PeerUnreachable:
            return
        except MusterError as error:
            logger.warning("heartbeat refused", extra=log.fields(code=error.code, reason=error.message))
            self.say(f"the master refused the last heartbeat: {error.message}")
            if error.status in _NOT_KNOWN:
                self.register_again()
            return
        self._unanswered = 0
        self.draining = bool(answer.get("draining"))
        self._take_slots(answer)
        held = f"{len(leases)} runs in hand" if len(leases) != 1 else "1 run in hand"
        drained = ", drained by a person: no new runs come" if self.draining else ""
        self.say(f"registered; last heartbeat answered at {_clock_time(self._clock)}; {held}{drained}")
        if answer.get("register"):
            self.register_again()
        self.on_orders(answer, leases)
        self.on_beat()
        self.signal("heartbeat")

    def _take_slots(self, answer: dict[str, Any]) -> None:
        slots = answer.get("slots")
        if type(slots) is int and slots > 0 and slots != self._slots:
            log.change(logger, "slots", from_=self._slots, to=slots)
            self._slots = slots
            self.on_slots(slots)

    def _answer_s(self) -> float:
        return min(_ANSWER_MOST_S, max(_ANSWER_LEAST_S, 2 * self.terms.heartbeat_s))

    def _silence(self) -> None:
        self._unanswered += 1
        self.say(f"the master has not answered {self._unanswered} heartbeats")
        logger.warning("heartbeat unanswered", extra=log.fields(in_a_row=self._unanswered))
        if self._unanswered >= _SILENT_ANSWERS:
            self._unanswered = 0
            self._client.stop()
            self._registered.clear()
            self._client.start()


def _clock_time(clock: Clock) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(clock.wall_ms() / 1000))
