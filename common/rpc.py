"""The RPC transport on zerorpc: its protocol, its context and hooks, its errors, with a server and client of our own.

The only module that knows zerorpc. `RpcServer` and `RpcClient` speak version 3 of its protocol, so stock clients and
servers work with them, but one bad message, slow peer or lost call never harms another. Middleware registered with
zerorpc's shared context is honoured: `resolve_endpoint`, `get_task_context`, `load_task_context`,
`client_before_request`, `server_before_exec` (which, like inline methods, must not wait).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zerorpc
import zmq

from common.rpc_calls import Call, Method, Peer, RpcMetrics, current_call
from common.rpc_client import ClientCore
from common.rpc_server import ServerCore
from common.rpc_socket import PlainSocket
from common.rpc_zap import ZapDoor

__all__ = ["Call", "Method", "Peer", "RpcClient", "RpcMetrics", "RpcServer", "current_call"]

_MAX_SOCKETS = 16_384


class _ZerorpcCarrier:
    """What server and client take from zerorpc's context, the one zmq context of this process."""

    def __init__(self) -> None:
        self._context = zerorpc.Context.get_instance()
        # Its sockets are green; ours are driven by the loop directly, on the same context below.
        self._plain: zmq.Context[PlainSocket] = zmq.Context.shadow(self._context.underlying)
        # Counts until the first socket is made. A process that simulates a fleet needs two for each of its agents.
        self._plain.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)

    def socket(self, kind: int) -> PlainSocket:
        return self._plain.socket(kind)

    def message_id(self) -> bytes:
        fresh: bytes = self._context.new_msgid()
        return fresh

    def resolve(self, endpoint: str) -> str:
        resolved: str = self._context.hook_resolve_endpoint(endpoint)
        return resolved

    def before_request(self, header: dict[str, Any], name: str, args: tuple[Any, ...]) -> None:
        header.update(self._context.hook_get_task_context())
        self._context.hook_client_before_request(zerorpc.Event(name, args, self._context, header))

    def before_exec(self, header: dict[str, Any], name: str, args: Sequence[Any]) -> None:
        self._context.hook_load_task_context(header)
        self._context.hook_server_before_exec(zerorpc.Event(name, args, self._context, header))

    def remote_error(self, name: str, message: str, traceback: str | None) -> Exception:
        error: Exception = zerorpc.RemoteError(name, message, traceback)
        return error

    def zap_door(self) -> ZapDoor:
        """The one ZAP door that a zmq context can have; kept with the context."""
        door: ZapDoor = self._context.__dict__.setdefault("muster_zap_door", ZapDoor())
        return door


class RpcServer(ServerCore):
    """Serves a table of methods on one endpoint.

    `endpoint` is `tcp://HOST:PORT`, port 0 for any free one. `secret_key` and `public_key` are the server's CURVE
    keys (z85); `secret_key=None` serves in the clear, for tests with foreign peers only. `authorize(peer, method)`
    is asked before each request, also for unknown names, and raises a `MusterError` to refuse; it must not wait.
    Messages above `max_message_bytes` cut their sender's connection. At most `max_pending_per_peer` calls of one key
    and `max_pending` in all are served at a time, inline ones apart; more are answered `busy`. `heartbeat_s` is the
    interval of the transport's own pings: a peer that misses three is taken for gone.
    """

    def _new_carrier(self) -> _ZerorpcCarrier:
        return _ZerorpcCarrier()


class RpcClient(ClientCore):
    """Calls the methods of one server, from any greenlet of the thread that made it.

    `server_key` is the server's public CURVE key (z85), `public_key` and `secret_key` are the caller's own;
    `server_key=None` speaks in the clear, for tests with foreign peers only. A message above `max_message_bytes`
    is refused before it is sent. `on_state(sentence)` is called when the state of the connection changes. A call
    waits up to `connect_wait_s` for a connection, not at all when the server refused this client. `backoff` gives
    the delays between attempts to connect.
    """

    def _new_carrier(self) -> _ZerorpcCarrier:
        return _ZerorpcCarrier()
