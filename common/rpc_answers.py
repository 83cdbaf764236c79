"""The answering half of a server: packs results and errors, sends them, and takes back what cannot arrive.

Whatever a method returned or raised, its caller gets exactly one answer that fits a message, or the method's
`on_unroutable` is told. Nothing here waits.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import zmq
from gevent.hub import get_hub

from common import log
from common import rpc_frames as frames
from common.errors import AnswerTooLarge, MusterError
from common.rpc_calls import Call, Peer, RpcMetrics
from common.rpc_outbox import Outbox
from common.rpc_socket import Carrier, Port

logger = logging.getLogger(__name__)

_TOTAL_BYTES = 64 * 1024 * 1024


class Answers:
    """Sends answers through one ROUTER port until `close`; afterwards every answer counts as lost."""

    def __init__(self, port: Port, carrier: Carrier, *, metrics: RpcMetrics, max_message_bytes: int) -> None:
        self._port: Port | None = port
        self._carrier = carrier
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._hub = get_hub()
        self._outbox = Outbox(self._send_now, peer_bytes=2 * max_message_bytes, total_bytes=_TOTAL_BYTES)

    def close(self) -> None:
        """Send nothing more."""
        self._port = None
        self._outbox.close()

    def result(self, call: Call, result: Any) -> None:
        """Answer with what the method returned."""
        try:
            blob = frames.pack_result(self._carrier.message_id(), call.message_id, result)
            if len(blob) > self._max_message_bytes:
                raise AnswerTooLarge(
                    f"The answer of {call.name} has {len(blob)} bytes, more than one message may hold: ask for fewer."
                )
        except frames.FrameError:
            logger.exception("an answer could not be packed", extra=log.fields(method=call.name))
            self.error(call.peer, call.message_id, internal_error())
        except AnswerTooLarge as error:
            self.error(call.peer, call.message_id, error)
        else:
            if not call.expired:
                self._send(call.peer, blob, expires_at=call.expires_at, lost=partial(self._take_back, call, result))
                return
        self._take_back(call, result)

    def error(self, peer: Peer, message_id: bytes, error: MusterError) -> None:
        """Answer with an error."""
        self._metrics.errors[error.code] += 1
        fields = [[field.field, field.message] for field in error.fields]
        blob = frames.pack_error(
            self._carrier.message_id(), message_id, code=error.code, message=error.message, fields=fields
        )
        self._send(peer, blob, expires_at=None, lost=_nothing)

    def heartbeat(self, peer: Peer, response_to: bytes) -> None:
        """Echo a sign of life, if there is room just now."""
        try:
            self._send_now(peer.identity, frames.pack_heartbeat(self._carrier.message_id(), response_to))
        except zmq.ZMQError as error:
            if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                raise

    def _send_now(self, identity: bytes, blob: bytes) -> None:
        """Hand the message to the peer's connection; raises `zmq.Again` when that is full, `zmq.ZMQError` when gone."""
        if self._port is None:
            raise zmq.ZMQError(errno.EHOSTUNREACH)
        self._port.send(identity, b"", blob)

    def _send(self, peer: Peer, blob: bytes, *, expires_at: float | None, lost: Callable[[], None]) -> None:
        identity = peer.identity
        try:
            if not self._outbox.holds(identity):
                self._send_now(identity, blob)
                return
        except zmq.Again:
            pass
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._lose(lost)
            return
        if not self._outbox.put(identity, blob, expires_at=expires_at, lost=partial(self._lose, lost)):
            self._lose(lost)

    def _lose(self, lost: Callable[[], None]) -> None:
        self._metrics.unroutable += 1
        lost()

    def _take_back(self, call: Call, result: Any) -> None:
        take_back = call.method.on_unroutable
        if take_back is None:
            return
        if gevent.getcurrent() is self._hub:  # it may wait, the loop must not
            gevent.spawn_raw(_guarded, take_back, call, result)
        else:
            _guarded(take_back, call, result)


def internal_error() -> MusterError:
    """What a caller is told of a fault of ours."""
    return MusterError("The master failed to carry this out; its log says why.")


def _guarded(take_back: Callable[[Peer, str, Any], None], call: Call, result: Any) -> None:
    try:
        take_back(call.peer, call.name, result)
    except Exception:  # edge: nobody is left who could be told
        logger.exception("an answer could not be taken back", extra=log.fields(method=call.name))


def _nothing() -> None:
    pass
