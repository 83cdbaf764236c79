"""Calls to the master's web door: repeats that are harmless, waits that can be cut short, errors as REST words them.

A call that finds the master away is repeated for a few seconds, so a restart of the master looks like a slow answer.
What must not happen twice carries a key by which the master knows a repeat.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gevent
from gevent.hub import get_hub

from common.clock import Clock
from common.errors import (
    CallTimeout,
    Forbidden,
    LoginRefused,
    PeerUnreachable,
    ProtocolError,
    Unavailable,
    UnknownMethod,
)
from common.model import TASK_FINAL_STATES

ANSWER_S = 15.0
"""How long the master may take over an ordinary call."""
PATIENCE_S = 6.0
"""How long a call is repeated while the master is away."""
_PAUSE_S = 0.1
_MAYBE_STORED = (
    "The task may have been stored all the same: look for it before you send it again, "
    "or send it with an Idempotency-Key, which makes a repeat safe."
)
_LONG_AWAY_S = 10.0
_SHORT_S = 1.0


class Caller(Protocol):
    """What is needed of `common.rpc.RpcClient`."""

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""

    def call(self, method: str, *args: Any, timeout_s: float, request_id: str | None = None) -> Any:
        """The answer of the master."""


class WaitCut(Exception):
    """A wait for something to happen was ended before its time: this webserver stops."""


class MasterClient:
    """The web door as the rest of the webserver uses it."""

    def __init__(
        self, rpc: Caller, clock: Clock, *, patience_s: float = PATIENCE_S, answer_s: float = ANSWER_S
    ) -> None:
        self._rpc = rpc
        self._clock = clock
        self._patience_s = patience_s
        self._answer_s = answer_s
        self._away_since_s: float | None = None
        self._parked: set[Any] = set()  # greenlets in a wait
        self._cut = False

    @property
    def connected(self) -> bool:
        """Whether the connection to the master is open."""
        return self._rpc.connected

    def read(self, method: str, *args: Any, timeout_s: float | None = None, patience_s: float | None = None) -> Any:
        """The answer of a method that may be called again when the master went away meanwhile."""
        wait_s = self._answer_s if timeout_s is None else timeout_s
        return self._patiently(lambda: self._once(method, args, wait_s), patience_s=patience_s)

    def act(self, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        """The answer of a method that a repeat would answer otherwise: called once."""
        wait_s = self._answer_s if timeout_s is None else timeout_s
        return self._once(method, args, wait_s, request_id=uuid.uuid4().hex)

    def add_task(self, request: Mapping[str, Any], meta: Mapping[str, Any], *, wait_s: float) -> tuple[Any, bool]:
        """(task view, whether this request created it); under a fresh idempotency key if the client gave none."""
        own_key = meta.get("idempotency_key")
        told = {**meta, "idempotency_key": own_key or f"web:{uuid.uuid4()}"}
        reached: list[bool] = []  # for each try, whether there was a master to send it to

        def add(left_s: float) -> Any:
            reached.append(self._rpc.connected)
            return self._once("add_task", (request, {**told, "wait_s": left_s}), self._answer_s + left_s)

        give_up_at = self._clock.monotonic_s() + wait_s
        try:
            answer = self._waiting(add, wait_s)
        except (CallTimeout, PeerUnreachable) as error:
            if any(reached):
                raise type(error)(f"{error.message} {_MAYBE_STORED}") from error
            raise
        view = self._wait_on(answer["task"], give_up_at)
        # A try whose answer was lost, or whose wait was cut, may be the one that stored it.
        return view, bool(answer["created"]) or own_key is None or any(reached[:-1])

    def get_task(self, task_id: str, *, wait_s: float = 0.0) -> Any:
        """The task's view; with `wait_s` when it is final, or after that long."""
        give_up_at = self._clock.monotonic_s() + wait_s
        return self._wait_on(self._get_task(task_id, wait_s), give_up_at)

    def _get_task(self, task_id: str, wait_s: float) -> Any:
        return self._waiting(lambda left_s: self._once("get_task", (task_id, left_s), self._answer_s + left_s), wait_s)

    def _wait_on(self, view: Any, give_up_at: float) -> Any:
        """The view when it is final, at the latest at `give_up_at`: a master that stops ends waits early."""
        while view["state"] not in TASK_FINAL_STATES and not self._cut:
            left_s = give_up_at - self._clock.monotonic_s()
            if left_s < _PAUSE_S:
                break
            gevent.sleep(_PAUSE_S)
            view = self._get_task(view["id"], left_s - _PAUSE_S)
        return view

    def cut_waits(self) -> None:
        """End every wait under way with what there is to tell now, and wait no more: this webserver stops."""
        self._cut = True
        for greenlet in list(self._parked):
            get_hub().loop.run_callback(self._cut_one, greenlet)

    def _cut_one(self, greenlet: Any) -> None:
        if greenlet in self._parked:
            greenlet.throw(WaitCut())

    def _waiting(self, ask: Callable[[float], Any], wait_s: float) -> Any:
        """`ask(seconds left)` while `wait_s` last, over restarts of the master; `ask(0)` when the wait is cut."""
        if wait_s <= 0 or self._cut:
            return self._patiently(lambda: ask(0.0))
        give_up_at = self._clock.monotonic_s() + wait_s
        me = gevent.getcurrent()
        self._parked.add(me)
        try:
            return self._patiently(lambda: ask(max(0.0, give_up_at - self._clock.monotonic_s())))
        except WaitCut:
            pass
        finally:
            self._parked.discard(me)
        return self._patiently(lambda: ask(0.0))

    def _patiently(self, ask: Callable[[], Any], *, patience_s: float | None = None) -> Any:
        """`ask()`, again and again while the master is away, for `patience_s` seconds after it was first missed."""
        missed_s = None if self._rpc.connected else self._clock.monotonic_s()
        while True:
            try:
                return ask()
            except PeerUnreachable:
                now_s = self._clock.monotonic_s()
                missed_s = now_s if missed_s is None else missed_s
                left_s = missed_s + (self._patience_s if patience_s is None else patience_s) - now_s
                if left_s <= 0 or self._long_away():
                    raise
            gevent.sleep(min(_PAUSE_S, left_s))

    def _once(self, method: str, args: tuple[Any, ...], timeout_s: float, request_id: str | None = None) -> Any:
        if self._long_away():
            timeout_s = min(timeout_s, _SHORT_S)
        try:
            return self._rpc.call(method, *args, timeout_s=timeout_s, request_id=request_id)
        except PeerUnreachable:
            self._note_away()
            raise
        except UnknownMethod as error:
            raise ProtocolError(f"The master does not know {method}: it is of another version.") from error
        except LoginRefused:
            raise  # of a person, not of this webserver
        except Forbidden as error:
            raise Unavailable(f"The master does not let this webserver in: {error.message}") from error

    def _note_away(self) -> None:
        if self._away_since_s is None:
            self._away_since_s = self._clock.monotonic_s()

    def _long_away(self) -> bool:
        """Whether the master has been away for so long that a request should not wait for its return."""
        if self._rpc.connected:
            self._away_since_s = None
        return self._away_since_s is not None and self._clock.monotonic_s() - self._away_since_s > _LONG_AWAY_S
