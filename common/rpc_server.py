"""The serving end of the RPC transport: one receive loop, an explicit method table, bounded pending calls.

Nothing a peer sends ends or stalls the loop: what is not a call is counted and dropped, what is too much is answered
`busy`, a peer that does not read loses its own answers only. Every request is authorised before anything is said
about its method. Handlers run in a greenlet each, or inline in the loop when they never wait.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent
import msgspec
import zmq
from gevent.hub import get_hub
from greenlet import greenlet

from common import log
from common import rpc_frames as frames
from common.errors import (
    Busy,
    InvalidRequest,
    Malformed,
    MusterError,
    ProtocolError,
    Unavailable,
    UnknownMethod,
)
from common.rpc_answers import Answers, internal_error
from common.rpc_calls import Call, Method, Peer, RpcMetrics, current
from common.rpc_socket import PlainSocket, Port, apply_options
from common.rpc_zap import DOMAIN, ServerCarrier, ZapDoor
from common.wire import invalid

logger = logging.getLogger(__name__)

_BACKLOG = 1024
# Small, because each may be as large as a message can be; answers beyond wait in the outbox, requests at their sender.
_TO_SEND = 256
_TO_READ = 64
_IDLE_KEPT = 256
_KEPT_PEERS = 20_000
_COMPLAIN_EVERY_S = 60.0


class ServerCore:
    """The server without its carrier; use `common.rpc.RpcServer`, which describes the parameters."""

    def __init__(
        self,
        endpoint: str,
        methods: Mapping[str, Method],
        *,
        secret_key: bytes | None,
        public_key: bytes | None,
        authorize: Callable[[Peer, str], None],
        max_message_bytes: int,
        max_pending_per_peer: int = 64,
        max_pending: int = 20_000,
        metrics: RpcMetrics | None = None,
        heartbeat_s: float = 10.0,
    ) -> None:
        self._bind_to = endpoint
        self._methods = dict(methods)
        self._decoders = {name: frames.decoder_of(m.takes) for name, m in methods.items() if m.takes is not None}
        self._secret_key = secret_key
        self._public_key = public_key
        self._authorize = authorize
        self._max_message_bytes = max_message_bytes
        self._max_pending_per_peer = max_pending_per_peer
        self._max_pending = max_pending
        self._heartbeat_s = heartbeat_s
        self.metrics = metrics or RpcMetrics()
        self._carrier = self._new_carrier()
        self._hub = get_hub()
        self._zap: ZapDoor | None = None
        self._port: Port | None = None
        self._answers: Answers  # from `start` on
        self._endpoint = endpoint
        self._peers: dict[bytes, Peer] = {}
        self._pending: dict[tuple[bytes, bytes], greenlet] = {}
        self._idle: list[greenlet] = []
        self._pending_of: Counter[str | bytes] = Counter()
        self._complained_at = -_COMPLAIN_EVERY_S

    def _new_carrier(self) -> ServerCarrier:
        raise NotImplementedError

    @property
    def endpoint(self) -> str:
        """Where the server listens; after `start` with the real port."""
        return self._endpoint

    def start(self) -> None:
        """Listen and serve from now on; raises `Unavailable` when the address cannot be had."""
        if self._port is not None:
            return
        socket = self._carrier.socket(zmq.ROUTER)
        try:
            endpoint = self._carrier.resolve(self._bind_to)
            self._configure(socket, endpoint)
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(0)
            self._leave_zap()
            raise Unavailable(f"Cannot listen on {self._bind_to}: {error.strerror}.") from error
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        self._endpoint = bound.rstrip(b"\0").decode() if isinstance(bound, bytes) else self._bind_to
        self._port = Port(socket, self._receive)
        self._answers = Answers(
            self._port, self._carrier, metrics=self.metrics, max_message_bytes=self._max_message_bytes
        )
        logger.info("rpc server listens", extra=log.fields(endpoint=self._endpoint))

    def stop(self) -> None:
        """Stop serving: calls being served are ended where they wait, their callers see the connection close."""
        if self._port is None:
            return
        port, self._port = self._port, None
        self._answers.close()
        port.close()
        self._leave_zap()
        for idle in list(self._idle):
            gevent.kill(idle)
        me = gevent.getcurrent()
        for serving in list(self._pending.values()):
            if serving is not me:
                gevent.kill(serving)
        logger.info("rpc server stopped", extra=log.fields(endpoint=self._endpoint))

    def _configure(self, socket: PlainSocket, endpoint: str) -> None:
        apply_options(
            socket,
            endpoint,
            max_message_bytes=self._max_message_bytes,
            to_send=_TO_SEND,
            to_read=_TO_READ,
            heartbeat_s=self._heartbeat_s,
        )
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        if self._secret_key is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret_key)
            if self._public_key is not None:
                socket.setsockopt(zmq.CURVE_PUBLICKEY, self._public_key)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            door = self._carrier.zap_door()
            door.open(self._carrier)
            self._zap = door

    def _leave_zap(self) -> None:
        if self._zap is not None:
            self._zap.close()
            self._zap = None

    # -- receiving: runs in the loop, never waits ----------------------------------------------------------------

    def _receive(self, parts: list[zmq.Frame]) -> None:
        # [identity, empty, message], or [identity, message] from peers that leave out the delimiter
        identity = parts[0].bytes
        if len(parts) not in (2, 3) or identity[:1] != b"\0" or (len(parts) == 3 and len(parts[1])):
            # Names chosen by the peer itself would not be unique to a connection.
            self._drop(identity, "frames of a foreign shape")
            return
        try:
            message = frames.parse(parts[-1].buffer)
        except frames.FrameError as error:
            self._drop(identity, str(error))
            return
        peer = self._peers.get(identity) or self._new_peer(identity, parts[-1])
        if message.response_to is not None:
            self._on_channel_event(peer, message)
        elif message.message_id is None:
            self._drop(identity, "a request without message_id")
        else:
            self._serve(peer, message, message.message_id)

    def _drop(self, identity: bytes, reason: str) -> None:
        self.metrics.malformed += 1
        now_s = time.monotonic()
        if now_s - self._complained_at >= _COMPLAIN_EVERY_S:
            self._complained_at = now_s
            logger.warning(
                "a message was dropped",
                extra=log.fields(peer=identity.hex(), reason=reason[:200], dropped=self.metrics.malformed),
            )

    def _new_peer(self, identity: bytes, frame: zmq.Frame) -> Peer:
        peer = Peer(
            key=_property(frame, "User-Id") if self._secret_key is not None else None,
            address=(_property(frame, "Peer-Address") or "").removeprefix("::ffff:"),
            identity=identity,
        )
        if len(self._peers) >= _KEPT_PEERS:
            self._peers.clear()  # a cache: libzmq never gives a name to a second connection
        self._peers[identity] = peer
        return peer

    def _on_channel_event(self, peer: Peer, message: frames.Message) -> None:
        """Stock zerorpc peers beat on open calls and offer credit; only the beat wants an echo."""
        response_to = message.response_to
        if message.name == frames.HEARTBEAT and response_to and (peer.identity, response_to) in self._pending:
            self._answers.heartbeat(peer, response_to)

    def _serve(self, peer: Peer, message: frames.Message, message_id: bytes) -> None:
        try:
            call, args = self._admit(peer, message, message_id)
        except MusterError as error:
            self._answers.error(peer, message_id, error)
            return
        except Exception:  # a door: the authoriser's or a hook's own fault must not end the loop
            logger.exception("a request could not be judged", extra=log.fields(method=message.name))
            self._answers.error(peer, message_id, internal_error())
            return
        if call is None:
            return
        if call.method.inline:
            token = current.set(call)
            try:
                self._carry_out(call, args)
            finally:
                current.reset(token)
        else:
            self._start(call, args)

    def _admit(self, peer: Peer, message: frames.Message, message_id: bytes) -> tuple[Call | None, Sequence[Any]]:
        """The call to carry out, or None when it is to be ignored; raises what is to be answered."""
        if message.version != frames.VERSION:
            raise ProtocolError(f"Speak version {frames.VERSION} of the protocol.")
        name = message.name
        self._authorize(peer, name)
        method = self._methods.get(name)
        if method is None:
            raise UnknownMethod(f"There is no method {name!r} here.")
        call = Call(peer, method, message, message_id, time.monotonic())
        if call.expires_at is not None and call.expires_at <= call.started_at:
            self.metrics.expired += 1
            return None, []
        if (peer.identity, message_id) in self._pending:
            self.metrics.duplicates += 1
            return None, []
        if not method.inline:
            self._check_room(peer)
        args = self._args(message)
        self._carrier.before_exec(message.header, name, args)
        return call, args

    def _args(self, message: frames.Message) -> Sequence[Any]:
        decoder = self._decoders.get(message.name)
        try:
            return message.args() if decoder is None else message.args_as(decoder)
        except frames.FrameError as error:
            raise Malformed(f"{message.name}: {error}.") from error
        except msgspec.ValidationError as error:
            raise invalid(error, method=message.name) from error

    def _check_room(self, peer: Peer) -> None:
        if len(self._pending) >= self._max_pending:
            raise Busy("Too many calls are being served: try again in a moment.")
        if self._pending_of[peer.key or peer.identity] >= self._max_pending_per_peer:
            raise Busy(f"At most {self._max_pending_per_peer} calls of one peer are served at a time.")

    # -- carrying out --------------------------------------------------------------------------------------------

    def _start(self, call: Call, args: Sequence[Any]) -> None:
        """Run the method in a greenlet of its own, from here to its first wait at once."""
        if self._idle:
            serving = self._idle.pop()
            serving.gr_context = contextvars.Context()
        else:
            serving = greenlet(self._work, self._hub)
        self._pending_of[call.peer.key or call.peer.identity] += 1
        self._pending[call.peer.identity, call.message_id] = serving
        self.metrics.pending = len(self._pending)
        serving.switch(call, args)

    def _work(self, call: Call, args: Sequence[Any]) -> None:
        """A greenlet that serves one call after the other: a new one for each would double the cost of a short call."""
        me = greenlet.getcurrent()
        while True:
            current.set(call)
            try:
                self._carry_out(call, args)
            except gevent.GreenletExit:
                return  # killed, most likely because the server stops
            finally:
                self._forget(call)
            if self._port is None or len(self._idle) >= _IDLE_KEPT:
                return
            self._idle.append(me)
            try:
                call, args = self._hub.switch()
            except BaseException:  # whatever is thrown at an idle greenlet, a late timeout of the last call: let it go
                self._idle.remove(me)
                return

    def _forget(self, call: Call) -> None:
        self._pending.pop((call.peer.identity, call.message_id), None)
        who = call.peer.key or call.peer.identity
        self._pending_of[who] -= 1
        if self._pending_of[who] <= 0:
            del self._pending_of[who]
        self.metrics.pending = len(self._pending)

    def _carry_out(self, call: Call, args: Sequence[Any]) -> None:
        try:
            result = call.method.fn(call.peer, *args)
        except MusterError as error:
            self._answers.error(call.peer, call.message_id, error)
        except TypeError as error:
            self._answers.error(call.peer, call.message_id, self._judge_type_error(call, error))
        except gevent.GreenletExit:
            self._answers.error(call.peer, call.message_id, Unavailable("The master ended this call: try again."))
            raise
        except (Exception, gevent.Timeout):  # a door: the caller gets a short sentence, the log the whole story
            logger.exception("a method failed", extra=log.fields(method=call.name))
            self._answers.error(call.peer, call.message_id, internal_error())
        else:
            self._answers.result(call, result)
        finally:
            self.metrics.calls[call.name] += 1
            self.metrics.seconds[call.name] += time.monotonic() - call.started_at

    def _judge_type_error(self, call: Call, error: TypeError) -> MusterError:
        """Wrong arguments fail before the method's own frame exists; anything deeper is a fault of ours."""
        frame = error.__traceback__
        if frame is not None and frame.tb_next is None:
            return InvalidRequest(f"{call.name} does not take these arguments.")
        logger.error("a method failed", exc_info=error, extra=log.fields(method=call.name))
        return internal_error()


def _property(frame: zmq.Frame, name: str) -> str | None:
    try:
        return str(frame.get(name)) or None
    except zmq.ZMQError:
        return None
