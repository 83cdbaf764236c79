import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import faults

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.arm("")


def child(code: str, **environ: str) -> subprocess.Popen[bytes]:
    """A Python process that passes fault points."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from common import faults\n{code}"],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def test_nothing_happens_while_nothing_is_armed() -> None:
    faults.at("anything")


def test_another_point_is_not_touched() -> None:
    faults.arm("here=fail")
    faults.at("there")
    with pytest.raises(faults.InjectedFault, match="here"):
        faults.at("here")


def test_fail_may_name_the_error_of_the_system() -> None:
    faults.arm("spool-write=fail:ENOSPC")
    with pytest.raises(OSError) as caught:
        faults.at("spool-write")
    assert caught.value.errno == errno.ENOSPC


def test_a_numbered_fault_acts_at_that_passage_only() -> None:
    faults.arm("here=fail@3")
    faults.at("here")
    faults.at("here")
    with pytest.raises(faults.InjectedFault):
        faults.at("here")
    faults.at("here")


def test_delay_holds_up_the_passing_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(faults.time, "sleep", naps.append)
    faults.arm("here=delay:0.5, there=delay:2@2")
    for point in ("here", "there", "here", "there"):
        faults.at(point)
    assert naps == [0.5, 0.5, 2.0]


def test_once_is_remembered_across_processes(tmp_path: Path) -> None:
    for _ in range(2):
        faults.arm("here=fail", once=tmp_path)
        if not (tmp_path / "here").exists():
            with pytest.raises(faults.InjectedFault):
                faults.at("here")
        faults.at("here")


def test_kill_ends_the_process_at_the_numbered_passage() -> None:
    code = "for i in (1, 2, 3):\n print(i, flush=True)\n faults.at('here')"
    process = child(code, MUSTER_FAULTS="here=kill@2")
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == (b"1\n2\n", -signal.SIGKILL)


def test_freeze_stops_the_process_until_it_is_continued() -> None:
    process = child("faults.at('here')\nprint('on')", MUSTER_FAULTS="here=freeze")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=30)
    assert out == b"on\n"


@pytest.mark.parametrize(
    "spec",
    ["here", "=kill", "here=explode", "here=delay", "here=delay:soon", "here=kill:9", "here=fail:ENOTHING", "a=kill@0"],
)
def test_a_spec_that_cannot_be_read_is_refused_with_the_forms(spec: str) -> None:
    with pytest.raises(ValueError, match="write NAME=kill"):
        faults.arm(spec)
