"""Many simulated agents in one process, over the real protocol: each enrols, pulls, begins, writes, ends, as planned.

    python -m tests.support.fleet --data DIR --agents 500 --plan plan.json

DIR is the data directory of a `muster up`. When all are online the line `fleet is ready` is printed. The plan is a list
of acts, JSON as `Act` has it; for each run the first act that fits counts, else the script says hello and succeeds.
An act that is `held` writes its output and ends when the process gets SIGUSR1. No script is ever run.

`Fleet` is the same for tests: it starts the process and does not bring gevent into theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from common.model import Ending, Outcome
from tests.support.processes import Spawned

if TYPE_CHECKING:
    from tests.support.cluster import Cluster
    from tests.support.fake_agent import FakeAgent

READY: Final = "fleet is ready"
# For clusters with a fleet: so many agents need not speak as often as the few of other tests.
CALM: Final = {"heartbeat": 5.0, "heartbeat_idle": 10.0, "lease": 60.0, "begin_lease": 30.0, "pull_wait": 30.0}
_AT_ONCE = 8
_TOGETHER = 50
_CHUNK = 256 * 1024


class Act(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What some agents do with a run. `about` of the first act that fits an agent is also what it says of itself."""

    agents: str = ""
    """Numbers from 0 on, such as `0-165,170`; empty: all."""
    attempts: tuple[int, ...] = ()
    """Which attempts this is for; empty: all."""
    about: dict[str, Any] = {}
    """Over what `register` says: name, hostname, labels, facts, version …"""
    delay_s: float = 0.0
    """From begin to output, up to as much again at random."""
    output: tuple[tuple[int, bytes], ...] = ((1, b"hello\n"),)
    """Stream number and bytes, in order."""
    held: bool = False
    """Whether it ends only when the process gets SIGUSR1."""
    ending: Ending = Ending(outcome=Outcome.EXIT, exit_code=0, duration_s=0.1)

    def fits(self, number: int, attempt: int | None = None) -> bool:
        """Whether it is for this agent, and this attempt if one is told."""
        mine = not self.agents or any(_within(number, part) for part in self.agents.split(","))
        return mine and (attempt is None or not self.attempts or attempt in self.attempts)


def _within(number: int, part: str) -> bool:
    first, _, last = part.partition("-")
    return int(first) <= number <= int(last or first)


class Fleet:
    """The process, for a test: agents are online inside the `with`."""

    def __init__(self, cluster: Cluster, agents: int, plan: Sequence[Act] = (), *, prefix: str = "sim") -> None:
        self._words = [sys.executable, "-m", __name__, "--data", str(cluster.data_dir), "--agents", str(agents)]
        self._words += ["--prefix", prefix, "--plan", str(cluster.path / f"{prefix}.json")]
        (cluster.path / f"{prefix}.json").write_bytes(msgspec.json.encode(list(plan)))
        self._mark = cluster.mark
        self._agents = agents

    def __enter__(self) -> Self:
        self.process = Spawned(self._words, mark=self._mark)
        try:
            self.process.expect(READY, timeout_s=30.0 + self._agents / 5)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.process.tail(), file=sys.stderr)
        self.close()

    def let_go(self) -> None:
        """Have those that are held end."""
        self.process.send(signal.SIGUSR1)

    def close(self) -> None:
        """Leave without a word."""
        self.process.send(signal.SIGKILL)
        self.process.wait()


def main(words: Sequence[str] | None = None) -> None:
    """Bring the fleet online and play it until this process is killed."""
    parser = argparse.ArgumentParser(description="Simulated agents.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--prefix", default="sim")
    parser.add_argument("--plan", type=Path)
    asked = parser.parse_args(words)
    plan = msgspec.json.decode(asked.plan.read_bytes(), type=list[Act]) if asked.plan else []
    tokens = _join_tokens(asked.data, asked.agents)
    _play(plan, tokens, asked.prefix)


def _join_tokens(data_dir: Path, count: int) -> list[str]:
    url = (data_dir / "url").read_text("utf-8").strip()
    secret = (data_dir / "admin.token").read_text("ascii").strip()
    told = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def one(_: int) -> str:
        asked = urllib.request.Request(f"{url}/api/v1/agent-tokens", data=b"{}", method="POST", headers=told)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            token: str = json.load(answer)["token"]
        return token

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, range(count)))


def _play(plan: list[Act], tokens: list[str], prefix: str) -> None:
    import gevent
    import gevent.event
    import zerorpc

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    zerorpc.Context.get_instance().max_sockets = 20_000
    go = gevent.event.Event()
    gevent.signal_handler(signal.SIGUSR1, go.set)
    players = [_Player(number, plan, token, f"{prefix}-{number:03}", go) for number, token in enumerate(tokens)]
    for start in range(0, len(players), _TOGETHER):
        some = [gevent.spawn(player.come) for player in players[start : start + _TOGETHER]]
        gevent.joinall(some, raise_error=True)
    loops = [gevent.spawn(loop) for player in players for loop in (player.beat, player.work)]
    print(READY, flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        gevent.joinall(loops, timeout=1.0, count=1, raise_error=True)


class _Player:
    """One agent of the fleet."""

    def __init__(self, number: int, plan: list[Act], token: str, name: str, go: Any) -> None:
        from common import auth
        from tests.support.fake_agent import FakeAgent

        self.plan = plan
        self.number = number
        self.go = go
        self.about: dict[str, Any] = next((act.about for act in plan if act.about and act.fits(number)), {})
        joined = auth.decode_join_token(token)
        self.secret = joined.secret
        self.agent: FakeAgent = FakeAgent(joined.endpoint, joined.server_key.encode(), name=name)
        self.agent.slots = 1
        self.terms: dict[str, Any] = {}

    def come(self) -> None:
        """Enrol and register."""
        agent = self.agent
        told = {"name": agent.name, "hostname": agent.hostname, "machine_id": agent.machine_id, **self.about}
        known = {name: told[name] for name in ("name", "hostname", "machine_id")}
        agent.call("enrol", {**known, "secret": self.secret, "version": "0"}, timeout_s=60.0)
        self.terms = agent.register(**self.about)["settings"]

    def beat(self) -> None:
        """Heartbeats for ever."""
        import gevent

        while True:
            interval_s = self.terms["heartbeat_s" if self.agent.held else "heartbeat_idle_s"]
            gevent.sleep(interval_s * random.uniform(0.5, 1.0))
            facts = {"facts": self.about["facts"]} if "facts" in self.about else {}
            self.agent.beat(**facts)

    def work(self) -> None:
        """Take one run after the other for ever."""
        while True:
            for claim in self.agent.claim(wait_s=self.terms["pull_wait_s"] * random.uniform(0.8, 1.0)):
                if self.agent.begin(claim)[0]["ok"]:
                    self._run(claim)

    def _run(self, claim: dict[str, Any]) -> None:
        import gevent

        act = next((act for act in self.plan if act.fits(self.number, claim["attempt"])), Act())
        if act.delay_s:
            gevent.sleep(act.delay_s * random.uniform(1.0, 2.0))
        offset = 0
        for stream, written in act.output:
            for start in range(0, len(written), _CHUNK):
                part = written[start : start + _CHUNK]
                self.agent.write(claim, part, offset=offset, stream=stream)
                offset += len(part)
        if act.held:
            self.go.wait()
        self.agent.end(claim, msgspec.structs.replace(act.ending, output_bytes=offset))


if __name__ == "__main__":
    main()
