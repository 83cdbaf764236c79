"""The webserver before a real master with two agents moved by hand, all in this process; and before one made up."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.auth import new_key_pair, save_key_pair
from common.config import Settings
from common.rpc import RpcClient
from master.app import Master
from tests.support.fake_web_master import FakeWebMaster
from tests.support.hand_agent import HandAgent
from tests.support.rpc import quick_backoff
from tests.support.web import WEB_KEYS, Http, webserver_for
from webserver.app import Webserver

SETTINGS = Settings(keeper_interval=0.2, heartbeat_idle=1000.0, heartbeat=1000.0, lease=1000.0, begin_lease=1000.0)


def script(content: str | bytes = "true") -> str:
    """A script as a request carries it."""
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def request(content: str | bytes = "true", **fields: Any) -> dict[str, Any]:
    """A task request; for `one` unless the fields say where to."""
    placed = "targets" in fields or "count" in fields
    return {"script": script(content), **({} if placed else {"targets": ["one"]}), **fields}


@dataclass
class Stack:
    """What the tests of the main flows use."""

    master: Master
    web: Webserver
    http: Http
    one: HandAgent
    two: HandAgent

    def count_tasks(self) -> int:
        """How many tasks are stored."""
        items: list[Any] = []
        cursor = ""
        while True:
            page = self.http.get(f"tasks?limit=500{cursor}").json
            items += page["items"]
            if page["next"] is None:
                return len(items)
            cursor = f"&cursor={page['next']}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A real master, the webserver, and the agents `one` and `two`."""
    data_dir = tmp_path_factory.mktemp("web")
    keys = {name: new_key_pair() for name in ("one", "two")}
    _trust(data_dir, keys)
    master = Master(SETTINGS, data_dir=data_dir, agent_listen="127.0.0.1:0", web_listen="127.0.0.1:0")
    master.start()
    hands = [
        HandAgent(master.agent_server.endpoint, server_key=master.server_keys.public, keys=keys[name], name=name)
        for name in ("one", "two")
    ]
    web = Webserver(SETTINGS, listen=("127.0.0.1", 0), rpc=_rpc(master))
    web.start()
    for hand in hands:
        hand.start()
    token = (data_dir / "admin.token").read_text().strip()
    try:
        yield Stack(master, web, Http(web.address, token), *hands)
    finally:
        web.stop(grace_s=1.0)
        for hand in hands:
            hand.stop()
        master.stop()


def _trust(data_dir: Path, keys: dict[str, Any]) -> None:
    (data_dir / "keys").mkdir(mode=0o700)
    save_key_pair(data_dir / "keys" / "web.key", WEB_KEYS)
    entries = [{"public_key": pair.public_text, "role": "agent", "name": name} for name, pair in keys.items()]
    (data_dir / "keys" / "trusted.json").write_text(json.dumps(entries))
    (data_dir / "keys" / "trusted.json").chmod(0o600)


def _rpc(master: Master) -> RpcClient:
    return RpcClient(
        master.web_server.endpoint,
        server_key=master.server_keys.public,
        public_key=WEB_KEYS.public,
        secret_key=WEB_KEYS.secret,
        max_message_bytes=SETTINGS.web_message,
        backoff=quick_backoff(),
    )


@pytest.fixture
def fake() -> Iterator[FakeWebMaster]:
    """A master that does what the test says."""
    with FakeWebMaster() as master:
        yield master


@pytest.fixture
def web(fake: FakeWebMaster) -> Iterator[Webserver]:
    """A webserver before `fake`."""
    with webserver_for(fake) as webserver:
        yield webserver


@pytest.fixture
def http(web: Webserver) -> Http:
    """Requests to `web`."""
    return Http(web.address)
