"""Sends the output of all attempts: one message at a time, shared fairly, small enough that nothing waits behind it.

A message holds at most `output_window` chunks of at most `output_chunk` bytes per attempt, taken in turn from the
attempts that are due, and is answered before the next one goes. Its size follows the link: whatever takes longer than
a second is halved. First bytes leave within a tenth of a second, a trickle is about five messages a second, a flood
goes as fast as the master takes it. What was not acknowledged is read from the spool and sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from agent.attempt import AttemptKey
from agent.holdings import Holding, Holdings
from agent.link import MasterLink
from agent.outflow import Outflow, Reader, as_wire
from agent.spool_reader import Chunk, Gap
from common import faults, log
from common.backoff import Backoff
from common.clock import Clock
from common.errors import CallTimeout, MusterError, PeerUnreachable, ProtocolError, TooLarge
from common.service import Loop

logger = logging.getLogger(__name__)

_OUTPUT_TIMEOUT_S = 30.0
_SLOW_S = 1.0
_ALIGN_S = 0.05  # what is due within this time goes along with what is due now
_LEAST_PIECE = 1024
_PIECE_HEAD = 150  # bytes of a piece on the wire beside its data: ids, lease, offset
_SEGMENT = 5

Batch = dict[Outflow, list[Chunk | Gap]]


class Spools(Protocol):
    """The part of the executor that is needed here."""

    def output(self, run_id: str, attempt: int) -> Reader:
        """A reader over the attempt's output."""

    def acknowledge(self, run_id: str, attempt: int, offset: int) -> None:
        """The master has all output below `offset`."""


class Pace:
    """How many bytes one message may hold, learnt from how long the last ones took."""

    LEAST = 16 * 1024
    FIRST = 256 * 1024
    LONG_S = 1.0
    SHORT_S = 0.25

    def __init__(self, most: int) -> None:
        self._most = most
        self.budget = min(self.FIRST, most)

    def learn(self, size: int, took_s: float) -> None:
        """A message of `size` bytes was answered after `took_s`."""
        if took_s > self.LONG_S:
            self.budget = max(self.LEAST, self.budget // 2)
        elif took_s < self.SHORT_S and size * 2 > self.budget:
            self.budget = min(self._most, self.budget * 2)

    def shrink(self) -> None:
        """A message was too large or not answered at all."""
        self.budget = max(self.LEAST, self.budget // 2)


class OutputSender(Loop):
    """See the module. `on_complete(key)` is called when an ended attempt's output is all with the master."""

    def __init__(self, *, link: MasterLink, holdings: Holdings, spools: Spools, most_bytes: int, clock: Clock) -> None:
        """`most_bytes` bounds the output in one message."""
        super().__init__("output", clock=clock)
        self.on_complete: Callable[[AttemptKey], None] = lambda key: None
        self._link = link
        self._holdings = holdings
        self._spools = spools
        self._pace = Pace(most_bytes)
        self._backoff = Backoff(base_s=0.2, cap_s=5.0)
        self._flows: dict[AttemptKey, Outflow] = {}
        self._turn = 0
        self._slow_until = 0.0
        self._sent_bytes = 0

    # -- what the rest of the agent tells; none of it waits ----------------------------------------------------------

    def flow(self, key: AttemptKey) -> Outflow | None:
        """The attempt's output, if there was any."""
        return self._flows.get(key)

    def grown(self, ends: Mapping[AttemptKey, int]) -> None:
        """Spools have grown to these offsets."""
        now = self._clock.monotonic_s()
        for key, end in ends.items():
            flow = self._flows.get(key)
            if flow is None:
                holding = self._holdings.get(key)
                if holding is None:
                    continue
                flow = self.follow(holding)
            flow.grow(end, now)
        self.wake()

    def follow(self, holding: Holding, *, adopted: bool = False) -> Outflow:
        """Send what this attempt writes; `adopted`: it may have written before this process began."""
        reader = self._spools.output(holding.run_id, holding.attempt)
        flow = self._flows[holding.key] = Outflow(holding.key, holding.lease, reader, adopted=adopted)
        return flow

    def ended(self, holding: Holding, total: int) -> None:
        """The attempt is over and wrote `total` bytes; `on_complete` follows, at once if nothing is to be sent."""
        flow = self._flows.get(holding.key)
        if flow is None and total:
            flow = self.follow(holding)
        if flow is None:
            self.on_complete(holding.key)
            return
        flow.finish(total)
        self._close_complete(flow)
        self.wake()

    def go_on_from(self, key: AttemptKey, acked: int) -> None:
        """The master has everything below `acked` and wants what follows."""
        flow = self._flows.get(key)
        if flow is not None:
            flow.go_on_from(acked)
            self._close_complete(flow)
            self.wake()

    def forget(self, key: AttemptKey) -> None:
        """The attempt's result was taken."""
        flow = self._flows.pop(key, None)
        if flow is not None:
            flow.close()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def step(self, now: float) -> float | None:
        """Send one message, if anything is due."""
        if not self._link.registered:
            self.say("output waits on disk until the master is back" if self._flows else "nothing to send")
            return None
        if now < self._slow_until:
            self.say("the master is short of room and asked for a pause")
            return self._slow_until - now
        batch = self._gather(now)
        if not batch:
            return self._until_due(now)
        return self._send(batch, now)

    def _end(self) -> None:
        super()._end()
        for flow in self._flows.values():
            flow.close()

    def _until_due(self, now: float) -> float | None:
        chunk = self._chunk()
        due_at = min((flow.due_at(chunk) for flow in self._flows.values()), default=None)
        self.say(f"following {len(self._flows)} attempts; {self._sent_bytes} bytes sent since the start")
        return None if due_at is None or due_at == float("inf") else max(0.0, due_at - now)

    def _chunk(self) -> int:
        return min(self._link.terms.output_chunk, self._pace.budget)

    def _gather(self, now: float) -> Batch:
        """Pieces of all attempts that are due: one each in turn, until the message is full."""
        flows = list(self._flows.values())
        chunk, room = self._chunk(), self._pace.budget
        if not any(flow.due_at(chunk) <= now for flow in flows):
            return {}
        self._turn = (self._turn + 1) % len(flows)
        flows = flows[self._turn :] + flows[: self._turn]
        batch: Batch = {}
        runs: dict[str, Outflow] = {}
        for number in range(self._link.terms.output_window):
            due_by = now + _ALIGN_S if number == 0 else now
            any_left = False
            for flow in flows:
                # The answer speaks of runs, so two attempts of one run go by separate messages.
                if flow.due_at(chunk) > due_by or runs.get(flow.run_id, flow) is not flow:
                    continue
                if room < _LEAST_PIECE:
                    return batch
                piece = flow.take(min(chunk, room), now)
                if piece is not None:
                    any_left = True
                    runs[flow.run_id] = flow
                    batch.setdefault(flow, []).append(piece)
                    room -= _weight(piece)
            if not any_left:
                break
        return batch

    def _send(self, batch: Batch, now: float) -> float:
        chunks = [as_wire(flow, piece) for flow, pieces in batch.items() for piece in pieces]
        size = sum(len(one.get("data", b"")) for one in chunks)
        faults.at("before-output")
        try:
            answer = self._link.call("output", chunks, timeout_s=_OUTPUT_TIMEOUT_S)
            acked = answer.get("acked") if isinstance(answer, dict) else None
            if not isinstance(acked, dict):
                raise ProtocolError("The master's answer to output names no offsets.")
        except MusterError as error:
            for flow, pieces in batch.items():
                flow.rewind(pieces)
            return self._not_sent(error)
        faults.at("after-output")
        self._backoff.reset()
        self._pace.learn(size, self._clock.monotonic_s() - now)
        self._sent_bytes += size
        for flow, pieces in batch.items():
            offset = acked.get(flow.run_id)
            self._settle(flow, pieces, offset if type(offset) is int else None)
        if answer.get("slow"):
            self._slow_until = self._clock.monotonic_s() + _SLOW_S
        self.say(f"following {len(self._flows)} attempts; {self._sent_bytes} bytes sent since the start")
        self.signal("sent", size)
        return 0.0

    def _settle(self, flow: Outflow, pieces: list[Chunk | Gap], acked: int | None) -> None:
        if self._flows.get(flow.key) is not flow:
            return
        if acked is None:
            logger.info("output is not wanted", extra=log.fields(run_id=flow.run_id, attempt=flow.attempt))
        flow.settle(pieces, acked)
        if acked is not None:
            self._spools.acknowledge(flow.run_id, flow.attempt, acked)
        self._close_complete(flow)

    def _close_complete(self, flow: Outflow) -> None:
        if flow.complete:
            flow.close()
            self.on_complete(flow.key)

    def _not_sent(self, error: MusterError) -> float:
        delay_s = self._backoff.next_s()
        self.say(f"the last message was not taken, it is sent again: {error.message}")
        if isinstance(error, TooLarge | CallTimeout):
            self._pace.shrink()
        if not isinstance(error, PeerUnreachable):
            logger.warning("output not taken", extra=log.fields(reason=error.message, next_try_s=round(delay_s, 2)))
        return delay_s


def _weight(piece: Chunk | Gap) -> int:
    """Bytes of a message that a piece takes, its segments generously."""
    return _PIECE_HEAD if isinstance(piece, Gap) else _PIECE_HEAD + len(piece.data) + _SEGMENT * len(piece.segments)
