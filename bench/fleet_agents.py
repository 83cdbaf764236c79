"""Some hundred simulated agents in one process: enrol, register, heartbeat, pull, begin, result; no script is run.

Reads one line of JSON from standard input (join tokens), then prints `online` and, per task, `round` with the monotonic
times at which each agent had its claim.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from typing import Any

import gevent
import zerorpc

from common import auth, ids
from common.errors import MusterError
from common.rpc import RpcClient

MESSAGE = 2 * 1024 * 1024


class SimulatedAgent:
    """One agent: its own key and connection."""

    def __init__(self, name: str, token: str) -> None:
        self.name = name
        self.session = ids.lease_token()
        self.held: list[list[Any]] = []
        self.pulls = 0
        joined = auth.decode_join_token(token)
        pair = auth.new_key_pair()
        self.secret = joined.secret
        self.client = RpcClient(
            joined.endpoint,
            server_key=joined.server_key.encode(),
            public_key=pair.public,
            secret_key=pair.secret,
            max_message_bytes=MESSAGE,
        )

    def enrol(self) -> None:
        """Get credentials and announce the agent."""
        self.client.start()
        about = {"secret": self.secret, "name": self.name, "hostname": self.name, "machine_id": self.name}
        enrolled = self.client.call("enrol", {**about, "version": "0"}, timeout_s=60)
        self.client.call(
            "register",
            {
                "agent_id": enrolled["agent_id"], "name": self.name, "hostname": self.name, "machine_id": self.name,
                "boot_id": self.name, "version": "0", "slots": 1, "queues": None, "labels": {}, "facts": {},
                "wall_ms": time.time_ns() // 1_000_000, "session": self.session, "held": [], "ended": [],
            },
            timeout_s=60,
        )  # fmt: skip

    def heartbeat_forever(self) -> None:
        """An idle agent's heartbeat every 15 s."""
        gevent.sleep(random.uniform(0, 15))
        while True:
            beat = {"session": self.session, "wall_ms": time.time_ns() // 1_000_000, "held": self.held}
            self.client.call("heartbeat", {**beat, "facts": {"cpu_percent": 1.0}}, timeout_s=30)
            gevent.sleep(15)

    def pull_forever(self, claimed: list[float]) -> None:
        """Pull, note the time, begin and report success, for ever."""
        while True:
            self.pulls += 1
            wait_s = random.uniform(30, 45)
            ask = {"session": self.session, "pull": self.pulls, "free_slots": 1, "held": self.held, "wait_s": wait_s}
            try:
                runs = self.client.call("pull_task", ask, timeout_s=wait_s + 15)["runs"]
            except MusterError as error:
                print(json.dumps({"word": "error", "text": str(error)}), file=sys.stderr, flush=True)
                gevent.sleep(1)
                continue
            for claim in runs:
                claimed.append(time.monotonic())
                self._run(claim)

    def _run(self, claim: dict[str, Any]) -> None:
        self.client.call("begin", [[claim["run_id"], claim["lease"]]], timeout_s=30)
        ending = {"outcome": "exit", "exit_code": 0, "output_bytes": 0, "duration_s": 0.0}
        result = {"run_id": claim["run_id"], "attempt": claim["attempt"], "lease": claim["lease"], "ending": ending}
        self.client.call("result", [result], timeout_s=30)


def main(number: str) -> None:
    """Run the agents whose join tokens stand on the first line of standard input."""
    tokens = json.loads(sys.stdin.readline())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = zerorpc.Context.get_instance()
    context.set(1, 2)  # IO threads
    context.max_sockets = 20_000
    agents = [SimulatedAgent(f"sim-{number}-{n}", token) for n, token in enumerate(tokens)]
    for start in range(0, len(agents), 50):
        gevent.joinall([gevent.spawn(agent.enrol) for agent in agents[start : start + 50]], raise_error=True)
    claimed: list[float] = []
    for agent in agents:
        gevent.spawn(agent.heartbeat_forever)
        gevent.spawn(agent.pull_forever, claimed)
    gevent.sleep(3)
    print(json.dumps({"word": "online"}), flush=True)
    while True:
        if len(claimed) >= len(agents):
            print(json.dumps({"word": "round", "claimed_at": claimed[:]}), flush=True)
            claimed.clear()
        gevent.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
