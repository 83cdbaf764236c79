"""The supervisor with real children: short shell and Python programs that notify, die, hang or refuse as told."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from muster.launch.children import Child, Program, death
from muster.launch.lines import Screen
from muster.launch.supervisor import Supervisor
from muster.words import Phrase
from tests.support.processes import command_of, freeze, until, wait_gone

NOTIFY = """
import os, socket, sys, signal, time
def ready():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.sendto(b"READY=1", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
"""
STAY = NOTIFY + "print('up', flush=True); ready(); signal.pause()"


class Rig:
    """A supervisor whose screen and stages a test sees; `play` runs it and calls `act` at each of its lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages: list[int] = []
        self.shown: list[str] = []
        self.acts: list[tuple[str, Callable[[], object]]] = []

    def on(self, text: str, act: Callable[[], object]) -> None:
        """Call `act` when a line with `text` is shown for the first time; in the order of these calls."""
        self.acts.append((text, act))

    def play(self, *programs: Program, optional_wait_s: float = 10.0) -> int:
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        reader.start()
        self.supervisor = Supervisor(
            programs,
            log_dir=self.path,
            screen=Screen(writing, width=6, colours=False),
            on_stage=self._on_stage,
            restart_s=0.02,
            restart_most_s=0.05,
            optional_wait_s=optional_wait_s,
        )
        try:
            return self.supervisor.run()
        finally:
            os.close(writing)
            reader.join(5)

    def _on_stage(self, stage: int) -> None:
        self.stages.append(stage)
        self.supervisor.say(Phrase("all of stage %(stage)s", stage=stage))

    def _read(self, fd: int) -> None:
        with os.fdopen(fd, encoding="utf-8") as lines:
            for line in lines:
                self.shown.append(line.rstrip("\n"))
                if self.acts and self.acts[0][0] in line:
                    self.acts.pop(0)[1]()

    def has(self, text: str) -> bool:
        return any(text in line for line in self.shown)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    yield made
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before
    assert not made.acts, f"never seen: {made.acts[0][0]}\n" + "\n".join(made.shown)
    for child in made.supervisor.children:
        assert not child.alive


def program(role: str, code: str, *, stage: int = 0, stop_s: float = 10.0, **more: object) -> Program:
    fields: dict[str, object] = {"environ": dict(os.environ), "hurry_s": 5.0, **more}
    return Program(role=role, argv=(sys.executable, "-c", code), stage=stage, stop_s=stop_s, **fields)  # type: ignore[arg-type]


def interrupt(number: int = signal.SIGTERM) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_starts_in_stages_and_stops_in_reverse(rig: Rig) -> None:
    first = program("first", NOTIFY + "print('one', flush=True); ready(); signal.pause()")
    second = program("second", NOTIFY + "print('two', flush=True); ready(); signal.pause()", stage=1)
    rig.on("all of stage 1", interrupt())
    assert rig.play(first, second) == 0
    assert rig.stages == [0, 1]
    wanted = [
        "one",
        "first is ready",
        "two",
        "second is ready",
        "stopping: ",
        "second has stopped",
        "first has stopped",
    ]
    places = [next(n for n, line in enumerate(rig.shown) if text in line) for text in wanted]
    assert places == sorted(places), rig.shown


def test_lines_are_marked_and_kept_in_a_file_for_each_role(rig: Rig) -> None:
    rig.on("is ready", interrupt())
    rig.play(program("web", STAY.replace("'up'", r"'a\x1b[2Jb'")))
    assert "web    | a^[[2Jb" in rig.shown
    assert (rig.path / "web.log").read_bytes().startswith(b"a\x1b[2Jb\n")
    assert "web is ready" in (rig.path / "up.log").read_text("utf-8")


def test_one_that_dies_is_started_again(rig: Rig) -> None:
    rig.on("web is ready", lambda: os.kill(rig.supervisor.children[0].pid or 0, signal.SIGKILL))
    rig.on("web is ready", interrupt())
    assert rig.play(program("web", STAY)) == 0
    assert rig.has("web died (SIGKILL); it is started again in 0.0 s")
    assert rig.stages == [0]  # announced once


def test_one_that_ends_without_being_asked_is_started_again(rig: Rig, tmp_path: Path) -> None:
    count = tmp_path / "count"
    code = NOTIFY + f"open({str(count)!r}, 'a').write('x'); n = len(open({str(count)!r}).read())\n"
    code += "if n < 3: print('last words', flush=True); sys.exit(n - 1)\nready(); signal.pause()"
    rig.on("web is ready", interrupt())
    assert rig.play(program("web", code)) == 0
    for words in ("died (exit code 0)", "died (exit code 1)"):
        assert rig.has(words)


def test_one_that_is_ready_and_dead_before_anybody_looks_is_started_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Child.start

    def start_and_outlive(child: Child, *args: object) -> int:
        reading = start(child, *args)  # type: ignore[arg-type]
        os.waitid(os.P_PID, child.pid or 0, os.WEXITED | os.WNOWAIT)
        return reading

    monkeypatch.setattr(Child, "start", start_and_outlive)
    rig.on("web died (exit code 3)", interrupt())
    assert rig.play(program("web", NOTIFY + "print('words', flush=True); ready(); sys.exit(3)")) == 0
    assert rig.has("web is ready")
    assert rig.has("| words")


def test_a_refused_configuration_stops_everything_with_its_message(rig: Rig) -> None:
    refuse = NOTIFY + "print('port 1 is not mine', file=sys.stderr); sys.exit(2)"
    assert rig.play(program("master", STAY), program("web", refuse, stage=1), program("never", STAY, stage=2)) == 2
    assert rig.has("web cannot run with this configuration: port 1 is not mine")
    assert rig.has("master has stopped")
    assert not rig.has("never is starting")


def test_one_that_the_others_can_do_without_is_left_out(rig: Rig) -> None:
    refuse = NOTIFY + "print('not enrolled'); sys.exit(2)"
    rig.on("agent cannot run and is left out until the next start: not enrolled", lambda: None)
    rig.on("all of stage 1", interrupt())
    assert rig.play(program("master", STAY), program("agent", refuse, stage=1, needed=False)) == 0
    assert rig.stages == [0, 1]


def test_one_that_the_others_can_do_without_is_waited_for_a_while_only(rig: Rig) -> None:
    never = program("agent-1", "import signal; signal.pause()", stage=1, needed=False)
    dies = program("agent-2", "raise SystemExit(1)", stage=1, needed=False)
    rig.on("agent-1, agent-2 are not ready after 0.1 s: the start goes on without them", lambda: None)
    rig.on("all of stage 1", interrupt())
    assert rig.play(program("master", STAY), never, dies, program("agent-3", STAY, stage=1), optional_wait_s=0.1) == 0
    assert rig.stages == [0, 1]


def test_one_that_the_others_need_is_waited_for_as_long_as_it_takes(rig: Rig, tmp_path: Path) -> None:
    sent = tmp_path / "go"
    os.mkfifo(sent)
    needed = program("web", NOTIFY + f"open({str(sent)!r}).read(); ready(); signal.pause()")
    other = program("agent", "import signal; signal.pause()", needed=False)
    rig.on("agent is starting", lambda: sent.write_text("go"))
    rig.on("web is ready", lambda: None)
    rig.on("all of stage 0", interrupt())
    assert rig.play(needed, other, optional_wait_s=0.0) == 0


def test_a_program_that_is_not_there_is_tried_again(rig: Rig) -> None:
    rig.on("could not be started", interrupt())
    missing = Program(role="web", argv=("/nowhere/muster",), stage=0, environ={}, stop_s=1, hurry_s=1)
    assert rig.play(missing) == 0


def test_a_second_signal_is_passed_on(rig: Rig) -> None:
    # Ends only at its second TERM, as an agent with a long script does.
    code = NOTIFY + "n = []\nsignal.signal(15, lambda *_: (n.append(1), print('asked', flush=True)))\nready()\n"
    code += "while len(n) < 2: signal.pause()"
    rig.on("is ready", interrupt(signal.SIGINT))
    rig.on("asked", interrupt(signal.SIGINT))
    assert rig.play(program("agent", code)) == 0
    assert rig.has("Ctrl-C once more ends it at once")
    assert rig.has("stopping at once")


def test_two_signals_in_one_moment_still_count_as_two(rig: Rig) -> None:
    code = NOTIFY + "n = []\nsignal.signal(15, lambda *_: n.append(1))\nready()\nwhile len(n) < 2: signal.pause()"

    def both() -> None:
        interrupt(signal.SIGTERM)()
        interrupt(signal.SIGINT)()

    rig.on("is ready", both)
    assert rig.play(program("agent", code)) == 0


def test_one_that_does_not_stop_is_killed(rig: Rig) -> None:
    deaf = NOTIFY + "signal.signal(15, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
    rig.on("is ready", interrupt())
    assert rig.play(program("agent", deaf, stop_s=0.05)) == 1
    assert rig.has("agent did not stop and is killed")


def test_a_frozen_one_is_killed_when_its_time_is_over(rig: Rig) -> None:
    def freeze_and_stop() -> None:
        freeze(rig.supervisor.children[0].pid or 0)
        interrupt()()

    rig.on("is ready", freeze_and_stop)
    assert rig.play(program("agent", STAY, stop_s=0.05)) == 1


def test_a_third_signal_kills(rig: Rig) -> None:
    deaf = NOTIFY + "signal.signal(15, lambda *_: print('no', flush=True)); ready()\nwhile True: signal.pause()"
    rig.on("is ready", interrupt())
    rig.on("| no", interrupt())
    rig.on("| no", interrupt())
    rig.play(program("agent", deaf, stop_s=60.0, hurry_s=60.0))
    assert rig.has("killing the daemons")


def test_a_stop_while_one_waits_for_its_restart(rig: Rig) -> None:
    rig.on("died (exit code 7)", interrupt())
    assert rig.play(program("web", "raise SystemExit(7)")) == 0


def test_a_child_has_no_descriptors_of_ours_and_a_session_of_its_own(rig: Rig) -> None:
    extra, other = socket.socketpair()  # something open that must not be inherited
    code = NOTIFY + "print('fds', sorted(os.listdir('/proc/self/fd')), os.getsid(0) == os.getpid(), flush=True)\n"
    code += "ready(); signal.pause()"
    rig.on("web2 is ready", interrupt())
    rig.play(program("web", code), program("web2", code, stage=1))
    extra.close()
    other.close()
    shown = [line for line in rig.shown if "fds" in line]
    # 3 is the folder being listed.
    assert all("fds ['0', '1', '2', '3'] True" in line for line in shown), shown
    assert len(shown) == 2


def test_somebody_elses_notification_does_not_count(rig: Rig) -> None:
    # The grandchild is not the daemon: it may live on after it.
    code = NOTIFY + (
        "import subprocess\n"
        f"subprocess.run([sys.executable, '-c', {NOTIFY + 'ready()'!r}])\n"
        "print('asked by a stranger', flush=True); signal.pause()"
    )
    rig.on("asked by a stranger", interrupt())
    assert rig.play(program("web", code)) == 0
    assert not rig.has("web is ready")
    assert rig.stages == []


class _Answers(BaseHTTPRequestHandler):
    statuses: ClassVar[list[int]]

    def do_GET(self) -> None:
        self.send_response(self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_readiness_may_be_an_address_that_answers_200(rig: Rig) -> None:
    class Answers(_Answers):
        statuses: ClassVar[list[int]] = [503, 503, 200]

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        rig.on("web is ready", interrupt())
        url = f"http://127.0.0.1:{server.server_port}/readyz"
        assert rig.play(program("web", STAY, probe_url=url)) == 0
        server.shutdown()
    assert Answers.statuses == [200]


def test_an_address_where_nobody_listens_is_asked_again(rig: Rig) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    code = STAY.replace("signal.pause()", "time.sleep(0.2); print('waited', flush=True); signal.pause()")
    rig.on("waited", interrupt())
    assert rig.play(program("web", code, probe_url=f"http://127.0.0.1:{port}/readyz")) == 0
    assert not rig.has("web is ready")


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from muster.launch.children import Program
from muster.launch.lines import Screen
from muster.launch.supervisor import Supervisor
argv = (sys.executable, "-c", {STAY!r})
program = Program(role="web", argv=argv, stage=0, environ=dict(os.environ), stop_s=5, hurry_s=5)
screen = Screen(1, width=3, colours=False)
Supervisor([program], log_dir=Path({str(tmp_path)!r}), screen=screen, on_stage=print).run()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = 0
        for line in supervisor.stdout:
            if "(process " in line:
                pid = int(line.partition("(process ")[2].partition(")")[0])
            if "web is ready" in line:
                break
        assert pid and "pause" in command_of(pid)
        supervisor.kill()
        wait_gone(pid, 5)


def test_processes_that_lose_their_parent_are_buried_where_they_fall_to_us(tmp_path: Path) -> None:
    # As process 1 of a container, or where a service manager made us a subreaper.
    orphan = "import os; print('orphan', os.getpid(), flush=True)"
    middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}])"
    long = NOTIFY + f"import subprocess; subprocess.run([sys.executable, '-c', {middle!r}]); ready(); signal.pause()"
    short = NOTIFY + "ready(); sys.exit(7)"
    code = f"""
import ctypes, os, sys
from pathlib import Path
from muster.launch.children import Program
from muster.launch.lines import Screen
from muster.launch.supervisor import Supervisor
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
programs = [
    Program(role=role, argv=(sys.executable, "-c", code), stage=0, environ=dict(os.environ), stop_s=5, hurry_s=5)
    for role, code in (("web", {long!r}), ("short", {short!r}))
]
screen = Screen(1, width=3, colours=False)
sys.exit(Supervisor(programs, log_dir=Path({str(tmp_path)!r}), screen=screen, on_stage=print, restart_s=0.05).run())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        shown: list[str] = []
        for line in supervisor.stdout:
            shown.append(line)
            text = "".join(shown)
            if "orphan" in text and "web is ready" in text and text.count("exit code 7") > 1:
                break
        pid = next(int(line.split()[-1]) for line in shown if "orphan" in line)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the orphan is buried", timeout_s=5)
        supervisor.send_signal(signal.SIGTERM)
        supervisor.stdout.read()
        assert supervisor.wait(10) == 0


def test_the_words_for_a_death() -> None:
    assert [str(death(code)) for code in (0, 3, -9, -200)] == ["exit code 0", "exit code 3", "SIGKILL", "signal 200"]
