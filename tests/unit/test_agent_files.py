"""What an agent keeps in its directory, and what it reads of its host: identity, lock, script cache, status, facts."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from agent.blobs import ScriptCache
from agent.facts import HostFacts
from agent.identity import AgentHome, BadIdentity, Identity, this_host
from agent.status import StatusPage
from common import auth
from common.clock import ManualClock
from common.errors import Busy, Conflict, NotFound, ProtocolError
from common.service import Service
from tests.support.agent_parts import Parts, ScriptedMaster

IDENTITY = Identity(endpoint="tcp://127.0.0.1:7441", master_key="k" * 40, agent_id="a", name="box", labels={"env": "ü"})


def test_an_identity_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    home = AgentHome(tmp_path / "deep" / "state")
    home.open()
    assert home.load() is None
    home.save(IDENTITY)
    assert home.load() == IDENTITY
    file = tmp_path / "deep" / "state" / "agent.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    with pytest.raises(auth.BadKeyFile, match="chmod 600"):
        home.load()
    home.close()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"endpoint": 1, "master_key": "k"}', b"{}"])
def test_an_identity_that_cannot_be_read_names_its_file(tmp_path: Path, content: bytes) -> None:
    auth.write_private(tmp_path / "agent.json", content)
    with pytest.raises(BadIdentity, match=r"agent\.json cannot be read"):
        AgentHome(tmp_path).load()


def test_a_newer_version_may_have_added_to_an_identity(tmp_path: Path) -> None:
    auth.write_private(tmp_path / "agent.json", b'{"endpoint": "tcp://h:1", "master_key": "k", "new": [1]}')
    identity = AgentHome(tmp_path).load()
    assert identity is not None and identity.endpoint == "tcp://h:1"


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"agent\.key is missing"):
        AgentHome(tmp_path).key_pair()


def test_the_lock_names_its_holder_and_goes_with_it(tmp_path: Path) -> None:
    first, second = AgentHome(tmp_path), AgentHome(tmp_path)
    first.open()
    with pytest.raises(Conflict, match=f"process {os.getpid()}"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_the_host_is_named_and_its_machine_id_stays_at_home(tmp_path: Path) -> None:
    machine, boot = tmp_path / "machine-id", tmp_path / "boot_id"
    machine.write_text("0123456789abcdef\n")
    boot.write_text("11111111-2222-3333-4444-555555555555\n")
    host = this_host(boot_id_file=boot, machine_id_file=machine)
    assert host.boot_id == "11111111-2222-3333-4444-555555555555"
    assert len(host.machine_id) == 32
    assert "0123456789abcdef" not in host.machine_id
    assert host == this_host(boot_id_file=boot, machine_id_file=machine)
    machine.write_text("other\n")
    assert this_host(boot_id_file=boot, machine_id_file=machine).machine_id != host.machine_id
    machine.unlink()
    assert len(this_host(boot_id_file=boot, machine_id_file=machine).machine_id) == 32
    assert this_host().hostname


def test_facts_are_plain_values_under_the_names_of_the_contract(tmp_path: Path) -> None:
    facts = HostFacts(tmp_path, clock=ManualClock()).read()
    assert facts["cpus"] >= 1
    assert 0 < facts["memory_used"] < facts["memory_total"]
    assert facts["disk_free"] > 0
    assert len(facts["load"]) == 3
    assert facts["boot_at"].endswith("Z")
    assert all(not address.startswith("127.") for address in facts["addresses"])
    assert all(isinstance(facts[name], str) for name in ("os", "kernel", "arch", "version"))


def test_a_fact_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    facts = HostFacts(tmp_path / "gone", clock=ManualClock()).read()
    assert "disk_free" not in facts
    assert "memory_total" in facts


class Blobs(Parts):
    """A cache over a master that has one script."""

    def __init__(self, folder: Path, script: bytes, *, most_bytes: int = 10_000_000) -> None:
        super().__init__(ScriptedMaster())
        self.script = script
        self.sha256 = hashlib.sha256(script).hexdigest()
        self.master.answers["blob"] = [self.piece]
        self.cache = ScriptCache(folder, link=self.link, largest=1_000_000, most_bytes=most_bytes)

    def piece(self, sha256: str, offset: int) -> dict[str, Any]:
        return {"size": len(self.script), "data": self.script[offset : offset + 1000]}

    def get(self) -> bytes:
        return self.cache.get(self.sha256, len(self.script))

    @property
    def pieces(self) -> int:
        return sum(1 for method, _ in self.master.calls if method == "blob")


def test_a_script_is_fetched_in_pieces_and_kept(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", b"x" * 2500)
    assert blobs.get() == blobs.script
    assert blobs.pieces == 3
    assert blobs.get() == blobs.script
    assert blobs.pieces == 3
    (file,) = (tmp_path / "blobs").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", b"x" * 2500)
    blobs.get()
    (tmp_path / "blobs" / blobs.sha256).write_bytes(b"y" * 2500)
    assert blobs.get() == blobs.script
    assert blobs.pieces == 6
    assert (tmp_path / "blobs" / blobs.sha256).read_bytes() == blobs.script


def test_the_oldest_scripts_make_room(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    folder.mkdir()
    for number in range(3):
        (folder / str(number)).write_bytes(b"o" * 1000)
        os.utime(folder / str(number), (number, number))
    blobs = Blobs(folder, b"x" * 2500, most_bytes=4000)
    blobs.get()
    assert sorted(path.name for path in folder.iterdir()) == sorted([blobs.sha256, "2"])


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file in its place")
    blobs = Blobs(tmp_path / "blobs", b"x" * 2500)
    assert blobs.get() == blobs.script
    assert blobs.get() == blobs.script


def test_a_piece_that_is_refused_for_now_is_asked_for_again(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", b"x" * 500)
    blobs.master.answers["blob"] = [Busy(), blobs.piece]
    assert blobs.get() == blobs.script


def test_what_is_not_the_script_is_not_run(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", b"x" * 500)
    blobs.master.answers["blob"] = [{"size": 500, "data": b"y" * 500}]
    with pytest.raises(ProtocolError, match="something else"):
        blobs.get()
    for answer in ({"size": 500, "data": b""}, {"size": 9, "data": b"x"}, {"size": 500, "data": "x" * 500}, None):
        blobs.master.answers["blob"] = [answer]
        with pytest.raises(ProtocolError, match="not a piece"):
            blobs.get()
    assert not (tmp_path / "blobs").exists()


def test_names_and_sizes_that_cannot_be_are_not_asked_for(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", b"x")
    for sha256, size in (("../../etc/passwd", 1), (blobs.sha256, 1_000_001), (blobs.sha256, -1)):
        with pytest.raises(ProtocolError):
            blobs.cache.get(sha256, size)
    assert blobs.pieces == 0


def test_a_script_the_master_does_not_have_is_said_so(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", b"x")
    blobs.master.answers["blob"] = [NotFound()]
    with pytest.raises(NotFound):
        blobs.get()


def test_the_status_file_is_written_when_a_sentence_changed(tmp_path: Path) -> None:
    service = Service("link")
    clock = ManualClock()
    page = StatusPage(tmp_path / "status", [service], head=lambda: "agent box", clock=clock)
    page.refresh()
    assert (tmp_path / "status").read_text().splitlines()[:2] == ["agent box", "link: not started"]
    before = (tmp_path / "status").stat().st_mtime_ns
    page.refresh()
    assert (tmp_path / "status").stat().st_mtime_ns == before
    service.say("registered")
    page.refresh()
    assert "link: registered" in (tmp_path / "status").read_text()


def test_a_status_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    StatusPage(tmp_path / "gone" / "status", [], head=lambda: "", clock=ManualClock()).refresh()
