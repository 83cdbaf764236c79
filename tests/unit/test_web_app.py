from pathlib import Path

import pytest

from common.auth import BadKeyFile, load_key_pair, load_or_create_key_pair
from common.clock import ManualClock
from common.config import Settings
from common.errors import InvalidRequest
from webserver import api
from webserver.app import _keys, create_app, parse_listen
from webserver.master_client import MasterClient
from webserver.metrics import WebMetrics
from webserver.rest import PREFIX
from webserver.security import AllowedHosts, SessionCheck, TokenCheck
from webserver.services import Services
from webserver.stream import EventStreams


class Nobody:
    """A master that is not asked."""

    connected = True

    def call(self, method: str, *args: object, timeout_s: float, request_id: str | None = None) -> object:
        raise AssertionError(method)


def services() -> Services:
    clock = ManualClock()
    master = MasterClient(Nobody(), clock)
    return Services(
        settings=Settings(),
        clock=clock,
        master=master,
        tokens=TokenCheck(master, clock),
        sessions=SessionCheck(master, clock),
        streams=EventStreams(master, clock),
        metrics=WebMetrics(),
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7440", ("127.0.0.1", 7440)),
        ("[::1]:80", ("::1", 80)),
        (":7440", ("", 7440)),
        ("web.lan:0", ("web.lan", 0)),
    ],
)
def test_an_address_to_listen_on_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "localhost:x", "a:70000", "::1:80", "a:-1", "a:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_listen(text)
    assert caught.value.fields[0].field == "listen"


def test_missing_or_damaged_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"web\.key"):
        _keys(tmp_path)
    load_or_create_key_pair(tmp_path / "web.key")
    with pytest.raises(InvalidRequest, match=r"master\.key"):
        _keys(tmp_path)
    (tmp_path / "master.pub").write_text("not a key\n")
    with pytest.raises(InvalidRequest, match=r"master\.pub"):
        _keys(tmp_path)
    (tmp_path / "web.key").chmod(0o644)
    with pytest.raises(BadKeyFile):
        _keys(tmp_path)


def test_every_operation_is_routed_and_described_and_nothing_else_is() -> None:
    app = create_app(services(), AllowedHosts("127.0.0.1"))
    routed = {
        (method, rule.rule.replace("<id:", "<"))
        for rule in app.url_map.iter_rules()
        if rule.endpoint.partition(".")[0] in {"health", "openapi", *(noun.name for noun in api.NOUNS)}
        for method in (rule.methods or set()) - {"HEAD"}
    }
    declared = {
        (operation.method, PREFIX + operation.path.replace("{", "<").replace("}", ">"))
        for noun in api.NOUNS
        for operation in noun.operations
    }
    open_ones = {("GET", path) for path in ("/healthz", "/readyz", "/metrics", f"{PREFIX}/openapi.json")}
    assert routed == declared | open_ones
    paths = app.test_client().get(f"{PREFIX}/openapi.json", base_url="http://localhost").json["paths"]
    described = {
        (method.upper(), path.replace("{", "<").replace("}", ">"))
        for path, methods in paths.items()
        for method in methods
    }
    assert described == routed - {("GET", f"{PREFIX}/openapi.json")}


def test_pages_bring_a_content_policy_of_their_own() -> None:
    client = create_app(services(), AllowedHosts("127.0.0.1")).test_client()
    answer = client.get("/login", base_url="http://localhost")
    assert answer.status_code == 200
    (policy,) = answer.headers.getlist("Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["X-Frame-Options"] == "DENY"


def test_a_master_public_key_file_is_enough_on_another_machine(tmp_path: Path) -> None:
    own = load_or_create_key_pair(tmp_path / "web.key")
    master = load_or_create_key_pair(tmp_path / "master.key")
    assert _keys(tmp_path) == (own, master.public)
    (tmp_path / "master.pub").write_bytes(master.public + b"\n")
    (tmp_path / "master.key").unlink()
    assert _keys(tmp_path) == (load_key_pair(tmp_path / "web.key"), master.public)
