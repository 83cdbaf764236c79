import socket
from pathlib import Path

import pytest

from common import notify


def receiver(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(name)
    sock.settimeout(5)
    return sock


def test_ready_reaches_a_socket_in_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes only
    with receiver("notify") as sock:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify.ready()
        assert sock.recv(100) == b"READY=1"


def test_ready_reaches_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver("\0muster-test-notify") as sock:
        monkeypatch.setenv("NOTIFY_SOCKET", "@muster-test-notify")
        notify.send("STATUS=draining")
        assert sock.recv(100) == b"STATUS=draining"


@pytest.mark.parametrize("address", ["", "nonsense", "/nowhere/at/all", "@muster-nobody-listens"])
def test_a_starter_that_does_not_listen_disturbs_nothing(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify.ready()
