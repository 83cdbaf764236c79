"""The webserver's composition root: builds the application, serves it, and ends in order.

`create_app` makes the Flask application from ready parts, so tests and the pages' code can use it without a network.
`main` is what `muster web` runs. At TERM it accepts nothing new, ends streams and waits, lets running requests finish
for a few seconds, and closes.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import flask

from common import log, notify
from common.auth import KeyPair, is_key, load_key_pair
from common.backoff import Backoff
from common.clock import Clock, SystemClock
from common.config import Settings
from common.descriptors import raise_limit
from common.errors import InvalidRequest
from common.loop import LoopLag
from common.rpc import RpcClient
from common.service import StopSignals
from webserver import api, health, openapi, pages, problems, security
from webserver.master_client import ANSWER_S, PATIENCE_S, MasterClient
from webserver.metrics import WebMetrics
from webserver.rest import PREFIX, IdConverter
from webserver.server import HttpServer
from webserver.services import Services
from webserver.stream import EventStreams

logger = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
"""How long running requests may take after TERM."""
_OTHER_PARTS = 1_000  # of a form, beside one for each target


def create_app(services: Services, hosts: security.AllowedHosts) -> flask.Flask:
    """The application: the API and the pages."""
    app = flask.Flask("webserver", static_folder=None, root_path=str(Path(__file__).parent))
    app.config["MAX_CONTENT_LENGTH"] = app.config["MAX_FORM_MEMORY_SIZE"] = services.settings.max_body
    app.config["MAX_FORM_PARTS"] = services.settings.max_targets + _OTHER_PARTS
    app.url_map.converters["id"] = IdConverter
    app.url_map.strict_slashes = True
    app.url_map.redirect_defaults = False
    app.url_map.merge_slashes = False
    problems.install(app)
    app.wsgi_app = security.Guard(app.wsgi_app, hosts, open_paths=frozenset({"/healthz", "/readyz"}))  # type: ignore[method-assign]
    app.register_blueprint(health.blueprint(services))
    for noun in api.NOUNS:
        app.register_blueprint(noun.blueprint(services))
    _serve_document(app)
    pages.install(app, services)
    return app


def _serve_document(app: flask.Flask) -> None:
    @lru_cache(maxsize=4)  # a webserver has few names
    def raw(cookie: str) -> bytes:
        document = openapi.document(api.NOUNS, cookie=cookie)
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()

    def document() -> flask.Response:
        content = raw(security.session_cookie(flask.request))
        return flask.Response(content, content_type="application/json", headers={"Cache-Control": "no-cache"})

    app.add_url_rule(f"{PREFIX}/openapi.json", "openapi", document, methods=["GET"], provide_automatic_options=False)


class Webserver:
    """A webserver with its connection to the master; `start` and `stop` once each.

    `patience_s`: how long calls are repeated while the master is away; `answer_s`: how long it may take over one.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        listen: tuple[str, int],
        rpc: RpcClient,
        clock: Clock | None = None,
        patience_s: float = PATIENCE_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._rpc = rpc
        self._clock = clock or SystemClock()
        self._lag = LoopLag(self._clock)
        metrics = WebMetrics()
        master = MasterClient(rpc, self._clock, patience_s=patience_s, answer_s=answer_s)
        self.services = Services(
            settings=settings,
            clock=self._clock,
            master=master,
            tokens=security.TokenCheck(master, self._clock),
            sessions=security.SessionCheck(master, self._clock),
            streams=EventStreams(master, self._clock),
            metrics=metrics,
        )
        self._measure(metrics)
        more = [*settings.hosts.split(","), urlsplit(settings.public_url).hostname or ""]
        hosts = security.AllowedHosts(listen[0], more=more)
        self.app = create_app(self.services, hosts)
        self.server = HttpServer(listen, self.app.wsgi_app, metrics)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the real port once started."""
        address: Any = self.server.address
        return str(address[0]), int(address[1])

    def start(self) -> None:
        """Connect to the master and serve. Raises `Unavailable` when the address cannot be had."""
        self._lag.start()
        self._rpc.start()
        self.server.listen()
        logger.info("webserver listens", extra=log.fields(host=self.address[0], port=self.address[1]))

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Accept nothing new, end streams and waits, let requests finish for up to `grace_s`, and close."""
        self.services.streams.stop()
        self.services.master.cut_waits()
        self.server.wind_down(grace_s=grace_s)
        self._rpc.stop()
        self._lag.stop()
        logger.info("webserver stopped")

    def _measure(self, metrics: WebMetrics) -> None:
        streams = self.services.streams
        metrics.gauge("muster_web_streams", "Open event streams.", lambda: streams.followers)
        metrics.gauge("muster_web_streams_behind", "Times a stream fell behind.", lambda: streams.fell_behind)
        metrics.gauge("muster_web_loop_lag_seconds", "Worst lateness of the loop lately.", self._lag.take_worst_s)
        metrics.gauge("muster_web_master_connected", "1 when connected to the master.", lambda: self._rpc.connected)


def main(settings: Settings, *, data_dir: Path, listen: str, master_endpoint: str) -> int:
    """Serve until TERM; answers the exit code.

    `listen` is HOST:PORT, `master_endpoint` the master's web door (`tcp://HOST:PORT`). `data_dir` holds `keys/web.key`
    and the master's public key: `keys/master.pub` (one line, z85) on another machine than the master's, else
    `keys/master.key`. Raises `BadKeyFile`, `InvalidRequest` or `Unavailable` with what to do.
    """
    log.configure("web", log_format=settings.log_format, level=settings.log_level)
    raise_limit()
    own, server_key = _keys(data_dir / "keys")
    rpc = RpcClient(
        master_endpoint,
        server_key=server_key,
        public_key=own.public,
        secret_key=own.secret,
        max_message_bytes=settings.web_message,
        connect_wait_s=1.0,  # `MasterClient` is the one with patience
        backoff=Backoff(cap_s=1.0),  # people wait, and webservers are few
    )
    webserver = Webserver(settings, listen=parse_listen(listen), rpc=rpc)
    signals = StopSignals(on_second=webserver.server.hurry)
    signals.listen()
    webserver.start()
    notify.ready()
    signals.drain.wait()
    notify.send("STOPPING=1")
    webserver.stop()
    return 0


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair, an IPv6 host without its brackets. Raises `InvalidRequest` naming `listen`."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in host and not host.startswith("[")):
        raise InvalidRequest.of("listen", f"{text!r} is no HOST:PORT such as 127.0.0.1:7440 or [::1]:7440")
    return host.strip("[]"), int(port)


def _keys(folder: Path) -> tuple[KeyPair, bytes]:
    """The webserver's own keys and the master's public one."""
    try:
        own = load_key_pair(folder / "web.key")
        public_file = folder / "master.pub"
        if not public_file.exists():
            return own, load_key_pair(folder / "master.key").public
    except FileNotFoundError as error:
        raise InvalidRequest(f"{error.filename} does not exist: `muster up` makes it, or copy it here.") from error
    text = public_file.read_text("ascii", "replace").strip()
    if not is_key(text):
        raise InvalidRequest(f"{public_file} holds no public key: one line of 40 characters.")
    return own, text.encode()
