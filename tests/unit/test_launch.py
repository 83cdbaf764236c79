"""What `muster up` does before anything runs: addresses, the data directory, log files, environments."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import auth
from common.config import Settings, load
from common.errors import Conflict, InvalidRequest
from muster.launch import ports
from muster.launch.lines import LineReader, LogFile, Screen
from muster.launch.ports import BadAddress, HostPort
from muster.launch.prepare import DataLock, path_safe, prepare
from muster.launch.up import Places, daemon_environ, programs, welcome

# Addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7440", "127.0.0.1", 7440),
        ("localhost", "localhost", 99),
        (":80", "127.0.0.1", 80),
        ("[::1]:7440", "::1", 7440),
        ("[::]", "::", 99),
        ("0.0.0.0:0", "0.0.0.0", 0),
    ],
)
def test_addresses_as_people_write_them(text: str, host: str, port: int) -> None:
    found = ports.parse(text, default_port=99)
    assert (found.host, found.port) == (host, port)
    assert ports.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["a:b", "::1:80", "[::1:80", "host:70000", "host:-1", "http://x:1", "a b:1", "[::1]80"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress, match="is no address"):
        ports.parse(text)


def test_port_0_becomes_a_free_one() -> None:
    found = ports.settle(HostPort("127.0.0.1", 0), option="--listen")
    assert found.port > 0
    assert ports.settle(found, option="--listen") == found


def test_a_port_in_use_is_one_sentence_that_names_the_option() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        taken = HostPort("127.0.0.1", sock.getsockname()[1])
        with pytest.raises(BadAddress, match=rf"{taken} is in use .* --listen"):
            ports.settle(taken, option="--listen", patience_s=0)
        first, second = ports.Reserved(), ports.Reserved()
        assert first.free_or_other(taken).port not in (0, taken.port)
    # Nobody listens yet, but one start of ours is about to.
    chosen = first.free_or_other(taken)
    assert chosen == taken
    assert second.free_or_other(taken).port not in (0, taken.port)
    first.close()
    assert second.free_or_other(taken) == taken
    second.close()


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(BadAddress, match=r"cannot listen on 192\.0\.2\.1:7440"):
        ports.settle(HostPort("192.0.2.1", 7440), option="--listen")


def test_everywhere_is_reached_by_the_loopback() -> None:
    assert str(HostPort("0.0.0.0", 5).near) == "127.0.0.1:5"
    assert str(HostPort("::", 5).near) == "[::1]:5"
    assert str(HostPort("10.0.0.1", 5).near) == "10.0.0.1:5"


# The data directory


def make(path: Path, agents: int = 1, hostname: str = "web") -> list[str]:
    return [local.name for local in prepare(path, agents=agents, endpoint="tcp://127.0.0.1:7441", hostname=hostname)]


def test_one_agent_is_called_as_the_host_several_have_numbers(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "three").mkdir()
    assert make(tmp_path / "one") == ["web"]
    assert make(tmp_path / "three", 3) == ["web-1", "web-2", "web-3"]


def test_another_number_of_agents_and_another_host_name_keep_every_identity(tmp_path: Path) -> None:
    assert make(tmp_path) == ["web"]
    key = auth.load_key_pair(tmp_path / "agents/web/agent.key").public
    assert make(tmp_path, 3) == ["web", "web-2", "web-3"]
    assert make(tmp_path, 2, hostname="db") == ["web", "web-2"]
    assert make(tmp_path, 4, hostname="db") == ["web", "web-2", "web-3", "db-4"]
    assert make(tmp_path, 0) == []
    assert make(tmp_path, 1) == ["web"]
    assert auth.load_key_pair(tmp_path / "agents/web/agent.key").public == key


def test_numbers_that_were_lost_are_given_anew_to_those_that_are_there(tmp_path: Path) -> None:
    make(tmp_path, 3)
    (tmp_path / "agents/numbers.json").unlink()
    assert make(tmp_path, 4) == ["web-1", "web-2", "web-3", "web-4"]


def test_an_agent_that_was_removed_gets_a_new_directory_and_number(tmp_path: Path) -> None:
    make(tmp_path, 2)
    for file in (tmp_path / "agents/web-1").iterdir():
        file.unlink()
    (tmp_path / "agents/web-1").rmdir()
    assert make(tmp_path, 2) == ["web-2", "web-3"]


def test_the_master_is_told_whom_to_trust_and_the_agents_where_it_is(tmp_path: Path) -> None:
    make(tmp_path, 2)
    trusted = json.loads(auth.read_private(tmp_path / "keys/trusted.json"))
    assert [(entry["role"], entry["name"]) for entry in trusted] == [
        ("web", "web"),
        ("agent", "web-1"),
        ("agent", "web-2"),
    ]
    assert trusted[1]["public_key"] == auth.load_key_pair(tmp_path / "agents/web-1/agent.key").public_text
    agent = json.loads(auth.read_private(tmp_path / "agents/web-1/agent.json"))
    assert agent["endpoint"] == "tcp://127.0.0.1:7441"
    assert agent["master_key"] == auth.load_key_pair(tmp_path / "keys/master.key").public_text


def test_what_an_agent_has_learned_stays_when_the_port_changes(tmp_path: Path) -> None:
    make(tmp_path)
    file = tmp_path / "agents/web/agent.json"
    known = json.loads(file.read_bytes())
    auth.write_private(file, json.dumps({**known, "agent_id": "0193", "name": "renamed", "slots": 3}).encode())
    prepare(tmp_path, agents=1, endpoint="tcp://127.0.0.1:9999", hostname="web")
    found = json.loads(file.read_bytes())
    assert (found["endpoint"], found["agent_id"], found["name"], found["slots"]) == (
        *("tcp://127.0.0.1:9999", "0193", "renamed", 3),
    )


def test_everything_secret_is_for_the_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    lock = DataLock(data)
    make(data)
    for path in [data, *data.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    lock.close()


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "keys/master.key").chmod(0o644)
    with pytest.raises(auth.BadKeyFile, match="may be read by others"):
        make(tmp_path)


def test_a_damaged_list_of_numbers_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    auth.write_private(tmp_path / "agents/numbers.json", b"[1]")
    with pytest.raises(InvalidRequest, match=r"numbers\.json"):
        make(tmp_path)


def test_a_second_start_on_the_directory_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    lock = DataLock(tmp_path)
    with pytest.raises(Conflict, match=f"in use by process {os.getpid()}"):
        DataLock(tmp_path)
    lock.close()
    DataLock(tmp_path).close()


def test_the_lock_is_not_inherited(tmp_path: Path) -> None:
    lock = DataLock(tmp_path)
    words = [sys.executable, "-c", "print('started', flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout is not None and child.stdout.readline()
        lock.close()
        DataLock(tmp_path).close()
        child.communicate(b"\n")


def test_a_directory_of_somebody_else_keeps_its_rights(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o755)
    (theirs / "letter").write_text("")
    with pytest.raises(InvalidRequest, match=r"theirs .* --data"):
        DataLock(theirs)
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755
    assert [path.name for path in theirs.iterdir()] == ["letter"]
    theirs.chmod(0o700)  # nothing to change: nobody else loses anything
    DataLock(theirs).close()


@pytest.mark.parametrize("ours", [(), ("lost+found",), ("up.lock", "letter"), ("muster.db",)])
def test_a_directory_that_is_empty_or_ours_becomes_private(ours: tuple[str, ...], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ours:
        (data / name).write_text("")
    data.chmod(0o755)
    DataLock(data).close()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_link_to_a_file_of_ours_makes_no_directory_ours(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "up.lock").write_text("")
    (tmp_path / "data" / "up.lock").symlink_to(tmp_path / "up.lock")
    (tmp_path / "data").chmod(0o777)
    with pytest.raises(InvalidRequest, match="--data"):
        DataLock(tmp_path / "data")


@given(st.text(max_size=100))
def test_any_host_name_is_a_safe_path(hostname: str) -> None:
    name = path_safe(hostname)
    assert name and "/" not in name and "\0" not in name and not name.startswith((".", "-"))
    assert len(name) <= 64


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot be used"):
        DataLock(tmp_path / "file" / "data")


# Log files and the screen


def test_a_log_file_has_a_bounded_size_and_keeps_the_last(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", most=100, keep=2)
    for number in range(40):
        log.write([b"%09d" % number])
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    kept = b"".join((tmp_path / name).read_bytes() for name in ("a.log.2", "a.log.1", "a.log"))
    assert kept.split() == [b"%09d" % number for number in range(10, 40)]


def test_a_log_file_that_cannot_be_written_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "missing" / "a.log")
    log.write([b"lost"])
    (tmp_path / "missing").mkdir()
    log.write([b"kept"])
    log.close()
    assert (tmp_path / "missing/a.log").read_bytes() == b"kept\n"


def test_lines_are_cut_where_they_end_and_at_a_limit() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    reader = LineReader(reading)
    os.write(writing, b"one\ntw")
    assert reader.read() == ([b"one"], False)
    assert reader.read() == ([], False)
    os.write(writing, b"o\n" + b"x" * 60_000)
    assert reader.read(rounds=3) == ([b"two"], False)
    os.write(writing, b"x" * 60_000)
    assert reader.read(rounds=3) == ([b"x" * 120_000], False)
    os.write(writing, b"end")
    os.close(writing)
    assert reader.read(rounds=3) == ([b"end"], True)
    os.close(reading)


def test_a_screen_that_takes_nothing_holds_up_nobody_and_is_told_later() -> None:
    reading, writing = os.pipe()
    screen = Screen(writing, width=6, colours=False)
    for _ in range(200):
        screen.show("web", [b"x" * 1000])
    first = os.read(reading, 1 << 20)
    screen.show("web", [b"after"])
    rest = os.read(reading, 1 << 20).decode()
    shown = first.count(b"\n")
    assert 0 < shown < 200
    assert f"muster | {200 - shown} lines were not shown here" in rest
    assert rest.endswith("web    | after\n")
    os.close(writing)
    os.close(reading)


def test_a_screen_nobody_reads_any_more_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    screen = Screen(writing, width=6, colours=False)
    screen.show("web", [b"a", b"b"])
    screen.say("hello")
    os.close(writing)


# What is started


def places(tmp_path: Path, rpc: str = "0.0.0.0:7441") -> Places:
    return Places(
        data_dir=tmp_path,
        listen=ports.parse("127.0.0.1:7440"),
        rpc=ports.parse(rpc),
        web_rpc=ports.parse("127.0.0.1:7442"),
    )


def test_command_lines_carry_the_role_and_the_state_directory(tmp_path: Path) -> None:
    found = programs(Settings(), places(tmp_path), prepare(tmp_path, agents=2, endpoint="tcp://x:1", hostname="h"), {})
    lines = [" ".join(program.argv) for program in found]
    assert [program.role for program in found] == ["master", "web", "h-1", "h-2"]
    assert [program.stage for program in found] == [0, 1, 2, 2]
    assert "muster/__main__.py master --data" in lines[0]
    assert "muster/__main__.py web --data" in lines[1]
    assert lines[3].endswith(f"muster/__main__.py agent --state {tmp_path}/agents/h-2")


def test_daemons_get_the_settings_and_no_other_word_of_ours() -> None:
    environ = {
        "PATH": "/bin",
        "MUSTER_LEASE": "7",
        "MUSTER_HEARTBEAT": "2",
        "MUSTER_TOKEN": "secret",
        "MUSTER_URL": "http://elsewhere",
        "MUSTER_DATA": "/elsewhere",
        "MUSTER_CONFIG": "/some/file",
        "MUSTER_JOIN_TOKEN": "muster1_secret",
        "MUSTER_FAULTS": "a=kill",
    }
    # A flag set the lease back to its default: the variable must not bring the other value back.
    settings = load(environ=environ, flags={"lease": 60.0})
    assert daemon_environ(settings, environ) == {
        "PATH": "/bin",
        "MUSTER_HEARTBEAT": "2.0",
        "MUSTER_CONFIG": "",
        "MUSTER_FAULTS": "a=kill",
    }


def test_the_welcome_has_lines_to_paste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my venv" / "muster"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "up"])
    text = welcome(places(tmp_path), [], named_data=True)
    assert "muster is ready: http://127.0.0.1:7440\n" in text
    assert f"| '{script}' run --data {tmp_path} --count 1 -" in text
    assert "cannot reach the loopback" not in text
    assert "cannot reach the loopback" in welcome(places(tmp_path, "127.0.0.1:7441"), [], named_data=False)
    assert "--data" not in welcome(places(tmp_path), [], named_data=False)
    assert "agents here" not in text
    assert f"  log in         '{script}' login --data {tmp_path}   prints the link to open\n" in text
    text = welcome(places(tmp_path), [], named_data=False, link="http://h/login/x", link_s=600.0)
    assert f"  log in         http://h/login/x  (once, 10 minutes; `'{script}' login` prints another)\n" in text
    agents = prepare(tmp_path, agents=2, endpoint="tcp://x:1", hostname="h")
    assert "agents here    h-1, h-2\n" in welcome(places(tmp_path), agents, named_data=False)
    one_missing = welcome(places(tmp_path), agents[:1], named_data=False, missing=1)
    assert "agents here    h-1 (1 not ready: see above)\n" in one_missing
