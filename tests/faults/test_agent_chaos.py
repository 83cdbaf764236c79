"""Agents under seeded misfortune: killed at fault points, frozen, cut off, asked twice, their master restarted.

Whatever happens, every run ends once, no script ran twice, one that is told as run to its end did, and its output is
there byte for byte.
"""

from __future__ import annotations

import hashlib
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import gevent
import pytest

from common.model import Outcome
from tests.support.agent_process import AgentHost, AgentProcess, agent_host, wait_until
from tests.support.fake_master import FakeMaster, FakeRun

POINTS = (
    "before-begin", "after-begin", "before-fork", "after-pull", "after-end", "before-result", "after-result-send",
    "before-output", "after-output", "after-register",
)  # fmt: skip
METHODS = ("begin", "output", "result", "pull_task", "register", "heartbeat")


@dataclass
class Expected:
    """A run and what it must have done, if it ran."""

    run: FakeRun
    trace: Path  # one line for each time it ran
    output: bytes


class Misfortune:
    """What goes wrong, drawn from one seed."""

    def __init__(self, seed: int, master: FakeMaster, host: AgentHost) -> None:
        self._draw = random.Random(seed)
        self._master = master
        self._host = host
        self._agent = self._start()
        self.runs: list[Expected] = []

    def _start(self, **environ: str) -> AgentProcess:
        return self._host.start(slots=4, environ=environ)

    def offer(self) -> None:
        """A few runs more, short and long, quiet and loud."""
        for _ in range(self._draw.randrange(4)):
            count, pause_s = self._draw.choice((0, 10, 2000, 50_000)), self._draw.choice((0, 0.05, 0.4))
            trace = self._host.state.parent / f"ran.{len(self.runs)}"
            script = f"echo ran >> {trace}; seq 1 {count}; sleep {pause_s}; seq 1 {count} >&2"
            lines = b"".join(b"%d\n" % number for number in range(1, count + 1))
            self.runs.append(Expected(self._master.offer(script), trace, lines))

    def strike(self) -> None:
        """One thing goes wrong, after a moment."""
        gevent.sleep(self._draw.random() * 0.5)
        self.revive()
        kind = self._draw.choice(
            ("kill", "cut", "lose", "lose", "restart", "freeze", "stop", "point", "point", "point")
        )
        getattr(self, f"_{kind}")()

    def revive(self) -> None:
        """Start the agent again if a fault point ended it."""
        if not self._agent.running:
            self._agent = self._start()

    def _kill(self) -> None:
        self._agent.kill()
        self._agent = self._start()

    def _cut(self) -> None:
        self._master.link.cut()
        gevent.sleep(self._draw.random() * 0.5)
        self._master.link.restore()

    def _lose(self) -> None:
        self._master.lose_answers(self._draw.choice(METHODS))

    def _restart(self) -> None:
        self._master.restart()

    def _freeze(self) -> None:
        self._agent.send(signal.SIGSTOP)
        gevent.sleep(self._draw.random())
        self._agent.send(signal.SIGCONT)

    def _stop(self) -> None:
        self._agent.send(signal.SIGTERM)
        self._agent.wait()
        self._agent = self._start()

    def _point(self) -> None:
        self._agent.kill()
        point, passage = self._draw.choice(POINTS), self._draw.randrange(1, 4)
        self._agent = self._start(MUSTER_FAULTS=f"{point}=kill@{passage}")


def judge(expected: Expected) -> None:
    """The one result is true."""
    run, ending = expected.run, expected.run.ending
    ran = len(expected.trace.read_text().splitlines()) if expected.trace.exists() else 0
    assert (run.begins, run.late) == (1, [])
    if ending.outcome is Outcome.INTERRUPTED:
        assert ran == 0, "only what never started is interrupted here: no shepherd was killed"
        return
    assert (ending.outcome, ending.exit_code, ran) == (Outcome.EXIT, 0, 1)
    assert bytes(run.stdout) == bytes(run.stderr) == expected.output
    assert run.gaps == []
    assert ending.output_sha256 in (None, hashlib.sha256(run.output).hexdigest())


@pytest.mark.timeout(600)
def test_no_run_is_lost_or_repeated_whatever_happens_to_its_agent(short_path: Path, full: bool) -> None:
    for seed in range(60 if full else 2):
        folder = short_path / str(seed)
        folder.mkdir()
        with agent_host(folder) as (master, host):
            misfortune = Misfortune(seed, master, host)
            for _ in range(14 if full else 8):
                misfortune.offer()
                misfortune.strike()
            wait_until(
                lambda: misfortune.revive() or all(one.run.endings for one in misfortune.runs),  # noqa: B023
                f"every run of seed {seed} has ended",
                timeout_s=60,
            )
            for expected in misfortune.runs:
                judge(expected)
            attempts = host.state / "attempts"
            wait_until(
                lambda: misfortune.revive() or not list(attempts.iterdir()),  # noqa: B023
                "nothing is left of delivered attempts",
            )
