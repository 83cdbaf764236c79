"""The calling end of the RPC transport: one connection that mends itself, many calls at a time.

A call always ends by its deadline, sending included, with the answer or an error that names the reason. When the
connection is lost every call under way fails at once; nothing unsent is kept and sent later. A caller that was
killed or timed out leaves nothing behind.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gevent
import gevent.socket
import zmq
from gevent.event import Event
from gevent.hub import Waiter, get_hub

from common import log
from common import rpc_frames as frames
from common.backoff import Backoff
from common.errors import CallTimeout, InvalidRequest, MusterError, PeerUnreachable, ProtocolError, TooLarge, from_wire
from common.rpc_link import Failure, Keys, Link
from common.rpc_socket import Carrier

logger = logging.getLogger(__name__)

_ROOM_POLL_S = 0.02
_PROBE_S = 2.0


class _Waiting:
    """One call that waits for its answer."""

    __slots__ = ("failure", "reply", "waiter")

    def __init__(self) -> None:
        self.waiter: Waiter[None] = Waiter()
        self.reply: frames.Message | None = None
        self.failure: str | None = None


class ClientCore:
    """The client without its carrier; use `common.rpc.RpcClient`, which describes the parameters."""

    def __init__(
        self,
        endpoint: str,
        *,
        server_key: bytes | None,
        public_key: bytes | None,
        secret_key: bytes | None,
        max_message_bytes: int,
        on_state: Callable[[str], None] | None = None,
        connect_wait_s: float = 5.0,
        backoff: Backoff | None = None,
        heartbeat_s: float = 10.0,
    ) -> None:
        self._endpoint = endpoint
        self._keys: Keys | None = None
        if server_key is not None:
            if public_key is None or secret_key is None:
                raise ValueError("an encrypted connection needs the caller's own key pair as well")
            self._keys = Keys(server=server_key, public=public_key, secret=secret_key)
        self._max_message_bytes = max_message_bytes
        self._on_state = on_state
        self._connect_wait_s = connect_wait_s
        self._backoff = backoff or Backoff()
        self._heartbeat_s = heartbeat_s
        self._carrier = self._new_carrier()
        self._hub = get_hub()
        self._link: Link | None = None
        self._refused = False
        self._state = "not started"
        self._changed = Event()
        self._connector: gevent.Greenlet[..., None] | None = None
        self._waiting: dict[bytes, _Waiting] = {}

    def _new_carrier(self) -> Carrier:
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return self._link is not None

    @property
    def state(self) -> str:
        """The connection's state in one sentence."""
        return self._state

    @property
    def pending(self) -> int:
        """How many calls wait for their answer."""
        return len(self._waiting)

    def start(self) -> None:
        """Connect, and keep connected until `stop`."""
        if self._connector is None:
            self._enter("connecting")
            self._connector = gevent.spawn(self._keep_connected)

    def stop(self) -> None:
        """Close the connection; calls under way fail with `PeerUnreachable`."""
        connector, self._connector = self._connector, None
        if connector is None:
            return
        connector.kill(block=connector is not gevent.getcurrent())
        self._enter("stopped", refused=True)
        self._fail_waiting("this client was stopped")

    def call(self, method: str, *args: Any, timeout_s: float, request_id: str | None = None) -> Any:
        """The answer of the peer's `method(*args)`, within `timeout_s` seconds all told.

        Raises `PeerUnreachable` (not or no longer connected; says why), `CallTimeout`, `TooLarge`, `InvalidRequest`
        (arguments that cannot be sent), `ProtocolError`, or the error the method raised, as its own class. After
        `PeerUnreachable` and `CallTimeout` the method may or may not have run. `request_id` is for whoever reads it on
        the other side (`current_call`); it does not make a repeat harmless.
        """
        if get_hub() is not self._hub:
            raise RuntimeError("this client belongs to another thread's loop: post the call through a ThreadBridge")
        deadline = time.monotonic() + timeout_s
        link = self._connected_link(method, deadline)
        message_id = self._carrier.message_id()
        blob = self._pack(method, args, message_id, deadline, request_id)
        waiting = _Waiting()
        self._waiting[message_id] = waiting
        try:
            self._send(link, blob, method, deadline)
            self._wait(waiting, deadline)
        finally:
            del self._waiting[message_id]
        if waiting.reply is not None:
            return self._answer(method, waiting.reply)
        if waiting.failure is not None:
            raise PeerUnreachable(f"{self._where()}: {waiting.failure} while {method} was under way.")
        raise CallTimeout(f"{self._where()} did not answer {method} within {timeout_s:g} s.")

    # -- one call ------------------------------------------------------------------------------------------------

    def _where(self) -> str:
        return f"The master at {self._endpoint.removeprefix('tcp://')}"

    def _unreachable(self, method: str) -> PeerUnreachable:
        return PeerUnreachable(f"{self._where()} cannot be reached for {method}: {self._state}.")

    def _connected_link(self, method: str, deadline: float) -> Link:
        """The open connection, waiting a little for it; raises `PeerUnreachable` with the reason there is none."""
        if self._link is not None:
            return self._link
        give_up_at = min(deadline, time.monotonic() + self._connect_wait_s)
        while True:
            left_s = give_up_at - time.monotonic()
            if self._refused or self._connector is None or left_s <= 0:
                raise self._unreachable(method)
            self._changed.wait(timeout=left_s)
            link: Link | None = self._link
            if link is not None:
                return link

    def _pack(
        self, method: str, args: tuple[Any, ...], message_id: bytes, deadline: float, request_id: str | None
    ) -> bytes:
        left_s = round(max(0.001, deadline - time.monotonic()), 3)
        header = frames.request_header(message_id, deadline_s=left_s, request_id=request_id)
        self._carrier.before_request(header, method, args)
        try:
            blob = frames.pack(header, method, args)
        except frames.FrameError as error:
            raise InvalidRequest(f"The arguments of {method} {error}.") from error
        if len(blob) > self._max_message_bytes:
            raise TooLarge(f"{method} has {len(blob)} bytes; one message may hold {self._max_message_bytes}.")
        return blob

    def _send(self, link: Link, blob: bytes, method: str, deadline: float) -> None:
        while True:
            if link is not self._link:
                raise self._unreachable(method)
            try:
                link.send(blob)
                return
            except zmq.Again:
                # A thousand messages are on their way: the peer has stopped reading. Rare, so looking again will do.
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise CallTimeout(f"{self._where()} took in no message in time: {method} was not sent.") from None
                gevent.sleep(min(_ROOM_POLL_S, left_s))

    def _wait(self, waiting: _Waiting, deadline: float) -> None:
        if waiting.reply is not None or waiting.failure is not None:
            return
        timer = self._hub.loop.timer(max(0.0, deadline - time.monotonic()))
        timer.start(waiting.waiter.switch, None, update=True)
        try:
            # Whoever comes first wakes us; the answer lies in `waiting`, so an answer beside the timer is not lost.
            waiting.waiter.get()
        finally:
            timer.stop()
            timer.close()

    def _answer(self, method: str, reply: frames.Message) -> Any:
        try:
            if reply.name == frames.OK:
                args = reply.args()
                if len(args) != 1:
                    raise frames.FrameError("an answer holds one value")
                return args[0]
            if reply.name != frames.ERR:
                raise frames.FrameError(f"it answered with {reply.name[:40]!r}, which is not used here")
            code, text, traceback, fields = frames.error_of(reply)
        except frames.FrameError as error:
            raise ProtocolError(f"{self._where()} gave no proper answer to {method}: {error}.") from error
        failure = from_wire(code, text, fields)
        if type(failure) is MusterError and code != MusterError.code:
            failure = MusterError(f"{code}: {text}")
        raise failure from self._carrier.remote_error(code, text, traceback)

    # -- what comes in: runs in the loop, never waits ----------------------------------------------------------------

    def _receive(self, parts: list[zmq.Frame]) -> None:
        try:
            message = frames.parse(parts[-1].buffer)
        except frames.FrameError as error:
            logger.warning("a message was dropped", extra=log.fields(endpoint=self._endpoint, reason=str(error)[:200]))
            return
        response_to = message.response_to
        if response_to is None or message.name == frames.MORE:
            return
        self._backoff.reset()  # only who answers counts as back: a master that dies on arrival is retried more rarely
        waiting = self._waiting.get(response_to)
        if waiting is None or waiting.reply is not None:
            return  # its caller has given up, or has its answer
        if message.name == frames.HEARTBEAT:
            self._beat_back(response_to)
        else:
            waiting.reply = message
            self._wake(waiting)

    def _beat_back(self, response_to: bytes) -> None:
        """A stock zerorpc server ends calls whose caller does not echo its heartbeats."""
        if self._link is None:
            return
        try:
            self._link.send(frames.pack_heartbeat(self._carrier.message_id(), response_to))
        except zmq.Again:
            pass  # the next one will do

    def _wake(self, waiting: _Waiting) -> None:
        self._hub.loop.run_callback(waiting.waiter.switch, None)

    def _fail_waiting(self, reason: str) -> None:
        for waiting in list(self._waiting.values()):
            if waiting.reply is None:
                waiting.failure = reason
                self._wake(waiting)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _enter(self, state: str, *, refused: bool = False) -> None:
        self._refused = refused
        changed, self._changed = self._changed, Event()
        changed.set()
        if state == self._state:
            return
        self._state = state
        logger.info("rpc connection", extra=log.fields(endpoint=self._endpoint, state=state))
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:  # edge of the loop: a listener's fault must not end the connection
                logger.exception("a listener failed", extra=log.fields(state=state))

    def _keep_connected(self) -> None:
        while True:
            try:
                self._connect_in_turn()
            except (OSError, zmq.ZMQError, ValueError) as error:
                text = error.strerror if isinstance(error, OSError | zmq.ZMQError) else error
                self._enter(f"its address cannot be used ({text})")
            except Exception as error:  # edge of the loop: it must go on as long as the client lives
                logger.exception("connecting failed", extra=log.fields(endpoint=self._endpoint))
                self._enter(f"connecting failed ({type(error).__name__})")
            gevent.sleep(self._backoff.next_s())

    def _connect_in_turn(self) -> None:
        """Try the addresses of the endpoint one by one, and serve calls over the first that opens, while it lasts."""
        failure: Failure | None = None
        for address in self._addresses():
            link = Link(
                self._carrier,
                address,
                self._receive,
                keys=self._keys,
                max_message_bytes=self._max_message_bytes,
                heartbeat_s=self._heartbeat_s,
            )
            try:
                if link.wait_open():
                    self._serve_calls(link)
                    return
                failure = link.wait_failed()
            finally:
                self._link = None
                link.close()
            if failure.no_connection:
                known = self._state.startswith(failure.reason)
                failure = replace(failure, reason=self._state) if known else _probe(address, failure)
        if failure is not None:
            self._enter(failure.reason, refused=failure.refused)

    def _serve_calls(self, link: Link) -> None:
        self._link = link
        self._enter("connected")
        failure = link.wait_failed()
        self._link = None
        self._enter(failure.reason, refused=failure.refused)
        self._fail_waiting(failure.reason)

    def _addresses(self) -> list[str]:
        """The endpoint with its host name looked up anew: the master may have moved."""
        endpoint = self._carrier.resolve(self._endpoint)
        transport, _, rest = endpoint.partition("://")
        host, _, port = rest.rpartition(":")
        if transport != "tcp":
            return [endpoint]
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError("it needs the form tcp://HOST:PORT")
        bare = host.strip("[]")
        try:
            ipaddress.ip_address(bare)
            return [endpoint]
        except ValueError:
            pass
        # In a thread of the loop's resolver: a slow name server must hold up neither the loop nor libzmq's I/O thread.
        found = get_hub().resolver.getaddrinfo(bare, int(port), 0, gevent.socket.SOCK_STREAM)
        hosts = dict.fromkeys(entry[4][0] for entry in found)
        return [f"tcp://[{ip}]:{port}" if ":" in ip else f"tcp://{ip}:{port}" for ip in hosts]


def _probe(address: str, failure: Failure) -> Failure:
    """Learn from the system why there is no connection; libzmq does not say."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        gevent.socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except TimeoutError:
        return Failure("no connection (no answer)", no_connection=True)
    except OSError as error:
        text = error.strerror or str(error)
        return Failure(f"no connection ({text[:1].lower()}{text[1:]})", no_connection=True)
    return failure
