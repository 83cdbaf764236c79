"""The main job, end to end on real processes: scripts in, results and output out, whatever dies meanwhile."""

from __future__ import annotations

import base64
import http.client
import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster.client import Run, Task
from tests.support.cluster import Cluster
from tests.support.processes import until

RAW = b"\xff\xfe\x00 \xc3\xa9 \xe9\n"
SHELL = b"#!/bin/sh\nprintf '\\377\\376\\000 \\303\\251 \\351\\n'\necho to stderr >&2\nexit 3\n"
PYTHON = b"#!/usr/bin/env python3\nimport os, sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('\\u00e9')\n"


def curl(cluster: Cluster, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The call as `curl` makes it: nothing of our client in between."""
    words = ["curl", "-sS", "-X", method, "-w", "\n%{http_code}", cluster.url + path]
    for name, value in {"Authorization": f"Bearer {cluster.token}", **headers}.items():
        words += ["-H", f"{name.replace('_', '-')}: {value}"]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    sent = None if body is None else json.dumps(body).encode()
    done = subprocess.run(words, input=sent, capture_output=True, check=True, timeout=90)
    content, _, status = done.stdout.rpartition(b"\n")
    return int(status), json.loads(content) if content.strip() else None


def runs_of(cluster: Cluster, task: Task) -> list[Run]:
    return list(cluster.client.runs(task.id))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Cluster(tmp_path_factory.mktemp("three") / "m", agents=3) as cluster:
        yield cluster


def test_shell_and_python_scripts_on_three_agents_by_curl(three: Cluster) -> None:
    for script, streams in ((SHELL, {"stdout": RAW, "stderr": b"to stderr\n"}), (PYTHON, None)):
        body = {"script": base64.b64encode(script).decode(), "targets": three.agents}
        status, task = curl(three, "POST", "/api/v1/tasks", body, Prefer="wait=30")
        assert status == 201
        assert task["total"] == 3
        _, page = curl(three, "GET", f"/api/v1/tasks/{task['id']}/runs")
        assert sorted(run["agent"]["name"] for run in page["items"]) == sorted(three.agents)
        for run in page["items"]:
            expected = 3 if script == SHELL else 0
            assert (run["outcome"], run["exit_code"]) == ("exit", expected)
            if streams is None:
                assert b"".join(three.client.output(run["id"])) == bytes(range(256)) + "\u00e9\n".encode()
            else:
                for name, content in streams.items():
                    assert b"".join(three.client.output(run["id"], stream=name)) == content  # type: ignore[arg-type]


def test_muster_run_shows_output_by_agent_and_ends_with_the_documented_code(three: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "hello.sh"
    script.write_bytes(b"echo hello from $1\n")
    done = three.cli("run", "--on", ",".join(three.agents), str(script), "there")
    assert done.returncode == 0, done.stderr
    for name in three.agents:
        assert re.search(rf"^{re.escape(name)}\b.*hello from there$".encode(), done.stdout, re.MULTILINE)
    script.write_bytes(b"exit 7\n")
    assert three.cli("run", "--on", three.agents[0], str(script)).returncode == 1
    assert three.cli("run", "--on", "nobody", str(script)).returncode == 4
    assert three.cli("run", str(script)).returncode == 2


def test_signals_and_timeouts_are_told_apart(three: Cluster) -> None:
    cases = {
        "kill -9 $$": ("signal", None, "SIGKILL"),
        "kill -SEGV $$": ("signal", None, "SIGSEGV"),
        "sleep 600 | cat": ("timeout", None, "SIGTERM"),
        "trap '' TERM; sleep 600 & wait; sleep 600": ("timeout", None, "SIGKILL"),
    }
    submitted = {s: three.client.submit(s, targets=[three.agents[0]], timeout=1.5) for s in cases}
    for script, (outcome, code, name) in cases.items():
        task = three.client.wait(submitted[script].id, timeout_s=30)
        (run,) = runs_of(three, task)
        assert (task.state, run.outcome, run.exit_code, run.signal) == ("failed", outcome, code, name), script
        assert run.killed_by_us is (outcome == "timeout")


def test_refused_requests_name_the_field_and_store_nothing(three: Cluster) -> None:
    script = base64.b64encode(b"true").decode()
    before = sum(1 for _ in three.client.tasks())
    refused: list[tuple[dict[str, Any], str]] = [
        ({"targets": three.agents}, "script"),
        ({"script": "", "targets": three.agents}, "script"),
        ({"script": "%%%", "targets": three.agents}, "script"),
        ({"script": script}, "targets"),
        ({"script": script, "targets": []}, "targets"),
        ({"script": script, "targets": [""]}, "targets[0]"),
        ({"script": script, "targets": ["*"]}, "targets[0]"),
        ({"script": script, "targets": [three.agents[0], "nobody"]}, "targets[1]"),
        ({"script": script, "count": 0}, "count"),
        ({"script": script, "count": 4}, "count"),
        ({"script": script, "targets": three.agents, "fail_count": 0}, "fail_count"),
        ({"script": script, "targets": three.agents, "fail_rate": 1.5}, "fail_rate"),
        ({"script": script, "targets": three.agents, "parallel": -1}, "parallel"),
        ({"script": script, "targets": three.agents, "priority": -1}, "priority"),
        ({"script": script, "targets": three.agents, "unheard_of": 1}, "unheard_of"),
        ({"script": script, "targets": three.agents, "selector": ""}, "selector"),
    ]
    for body, field in refused:
        status, problem = curl(three, "POST", "/api/v1/tasks", body)
        assert status == 422, body
        assert field in [fault["field"] for fault in problem["errors"]], problem
    big = base64.b64encode(b"#" * (4 * 1024 * 1024 + 1)).decode()
    assert curl(three, "POST", "/api/v1/tasks", {"script": big, "targets": three.agents})[0] == 422
    assert sum(1 for _ in three.client.tasks()) == before


def test_one_result_never_closes_the_whole_and_the_stop_rule_skips_the_rest(three: Cluster) -> None:
    script = "test \"$(cat /proc/sys/kernel/random/uuid)\" = '' "
    task = three.run(script, targets=three.agents, parallel=1, fail_count=1)
    states = sorted(run.state for run in runs_of(three, task))
    assert (task.state, states) == ("failed", ["failed", "skipped", "skipped"])
    assert task.reason is not None and task.reason.code == "fail_count"
    slow = three.client.submit("sleep $((RANDOM % 1)); exit 0", targets=three.agents, interpreter=["/bin/bash"])
    ended = three.client.wait(slow.id, timeout_s=30)
    assert ended.counts == {"succeeded": 3}


def test_work_goes_on_and_ends_right_while_daemons_are_killed(tmp_path: Path, full: bool) -> None:
    """Master killed twice, webserver, an agent and a shepherd once: only the shepherd's runs are interrupted."""
    seconds = 20 if full else 8
    script = f"for i in $(seq 1 {seconds * 5}); do echo $MUSTER_RUN_ID $i; sleep 0.2; done"
    with Cluster(tmp_path / "m", agents=3, settings={"slots": 4}) as cluster:
        victim, other, _ = cluster.agents
        tasks = [cluster.client.submit(script, targets=[cluster.agents[n % 3]], lost_after=0) for n in range(10)]
        runs = [runs_of(cluster, task)[0] for task in tasks]
        until(lambda: all(cluster.client.run(r.id).state == "running" for r in runs), "all ten have begun")
        cluster.restart("master")
        under_way = {r.id for r in runs if r.where == victim and cluster.client.run(r.id).state == "running"}
        cluster.kill_shepherd(victim)
        cluster.restart("web")
        cluster.restart(other)
        cluster.restart("master")
        ended = [cluster.client.wait(task.id, timeout_s=90) for task in tasks]
        for task in ended:
            (run,) = runs_of(cluster, task)
            assert run.attempt == 1
            if run.id in under_way:
                assert (run.state, run.outcome) == ("failed", "interrupted"), run
            else:
                assert (run.state, run.outcome, run.exit_code) == ("succeeded", "exit", 0), run
                expected = "".join(f"{run.id} {n}\n" for n in range(1, seconds * 5 + 1))
                assert cluster.output(task).decode() == expected
        assert cluster.client.verify().findings == []


def test_a_flood_of_output_is_bounded_everywhere_and_its_ends_are_whole(tmp_path: Path, full: bool) -> None:
    """Memory of every daemon below 150 MB; begin and end intact, the gap declared; heartbeats in time."""
    lines = 2_000_000 if full else 600_000
    script = f"seq -f 'line %012.0f of a flood of fifty bytes a line.' 1 {lines}"
    line = "line {:012d} of a flood of fifty bytes a line.\n"
    size = len(line.format(1)) * lines
    with Cluster(tmp_path / "m", agents=1, settings={"heartbeat": 1.0, "output_limit": 4 * 1024 * 1024}) as cluster:
        cluster.run("true")
        peak = Peak({role: cluster.pid(role) for role in ("master", "web", cluster.agents[0])})
        peak.watch("shepherd", cluster.shepherds(cluster.agents[0])[0])
        seen_late = Lateness(cluster)
        task = cluster.run(script, output_limit=4 * 1024 * 1024, timeout_s=120)
        late_s = seen_late.stop()
        (run,) = runs_of(cluster, task)
        assert run.state == "succeeded"
        assert run.output_bytes == size
        piece = cluster.client.output_at(run.id, offset=0, limit=1 << 20)
        assert piece.data.startswith((line.format(1) + line.format(2)).encode())
        kept = b"".join(cluster.client.output(run.id))
        assert kept.endswith((line.format(lines - 1) + line.format(lines)).encode())
        assert len(kept) + sum(length for _, length in run.output_gaps) == size
        assert max(peak.stop().values()) < 150.0, peak.peaks
        assert late_s <= 3.0, f"a heartbeat was {late_s:.1f} s late"


class Peak:
    """The largest resident memory of some processes, in MB, by the kernel's own high-water mark."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = dict(pids)
        self.peaks: dict[str, float] = {}

    def watch(self, role: str, pid: int) -> None:
        self.pids[role] = pid

    def stop(self) -> dict[str, float]:
        for role, pid in self.pids.items():
            for row in Path(f"/proc/{pid}/status").read_text().splitlines():
                if row.startswith("VmHWM:"):
                    self.peaks[role] = int(row.split()[1]) * 1024 / 1e6
        return self.peaks


class Lateness:
    """The longest time the only agent was not heard of, watched through REST from a thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self._worst_s = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._ended.set()
        self._thread.join(10)
        return self._worst_s

    def _watch(self) -> None:
        host = self._cluster.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=30)
        headers = {"Authorization": f"Bearer {self._cluster.token}"}
        last = ""
        changed_s = time.monotonic()
        while not self._ended.wait(0.1):
            connection.request("GET", "/api/v1/agents", headers=headers)
            seen = json.loads(connection.getresponse().read())["items"][0]["last_seen_at"]
            if seen != last:
                last, changed_s = seen, time.monotonic()
            self._worst_s = max(self._worst_s, time.monotonic() - changed_s)
