"""The examples of the API's reference do what they show: each one is run as it is printed, in bash, by curl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.client import Task
from tests.support.cluster import Cluster
from webserver import api, openapi
from webserver.examples import EXAMPLES

DOCUMENT: dict[str, Any] = openapi.document(api.NOUNS)
OPERATIONS: dict[str, dict[str, Any]] = {
    operation["operationId"]: operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
}
# What has to be under way, and what has to have ended, for an example to make sense.
UNDER_WAY = {"pause_task", "resume_task", "cancel_run"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("the examples need curl and bash")
    with Cluster(tmp_path_factory.mktemp("examples") / "m", agents=2) as cluster:
        yield cluster


class Shell:
    """Runs printed examples; what curl is told beside them (its own settings) writes down the head of the answer."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._head = folder / "head"
        (folder / ".curlrc").write_text(f'dump-header = "{self._head}"\n')
        self.environ = {
            "PATH": os.environ["PATH"],
            "CURL_HOME": str(folder),
            "MUSTER_URL": cluster.url,
            "MUSTER_TOKEN": cluster.token,
            "AGENT": cluster.agents[0],
        }

    def run(self, command: str, **variables: str) -> tuple[int, str, bytes]:
        """Status, content type and content of the answer."""
        done = subprocess.run(
            ["bash", "-euc", command], env={**self.environ, **variables}, capture_output=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        return (*self._told(), done.stdout)

    def first_event(self, command: str, **variables: str) -> tuple[int, str, bytes]:
        """The same for an answer without end, of which the first event is read."""
        with subprocess.Popen(
            ["bash", "-euc", f"exec {command}"], env={**self.environ, **variables}, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            seen = b""
            for line in process.stdout:
                seen += line
                if line.startswith((b"event:", b"id:")):
                    break
            process.kill()
        return (*self._told(), seen)

    def _told(self) -> tuple[int, str]:
        lines = self._head.read_text("ascii").splitlines()
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        return int(lines[0].split()[1]), headers.get("content-type", "").partition(";")[0]


def _variables(cluster: Cluster, task: Task) -> dict[str, str]:
    return {"TASK_ID": task.id, "RUN_ID": next(iter(cluster.client.runs(task.id))).id}


def test_every_example_runs_as_it_is_printed(cluster: Cluster, tmp_path: Path) -> None:
    shell = Shell(cluster, tmp_path)
    ended = _variables(cluster, cluster.run("echo out; echo err >&2; exit 3", count=1))
    under_way = _variables(cluster, cluster.start_script("sleep 60", count=1))
    leaver = cluster.add_agent("leaver")
    made: dict[str, str] = {}
    for name, example in EXAMPLES.items():
        operation = OPERATIONS[name]
        [sample] = operation["x-codeSamples"]
        variables = under_way if name in UNDER_WAY else ended
        if name == "cancel_task":
            variables = _variables(cluster, cluster.start_script("sleep 60", count=1))
        elif name == "revoke_token":
            variables = {"TOKEN_ID": made["token"]}
        elif name in ("revoke_agent", "forget_agent"):
            variables = {"AGENT": "leaver"}
        if name == "forget_agent":
            leaver.process.kill()
            cluster.wait_agent("leaver", "offline")
        run = shell.first_event if example.endless else shell.run
        status, content_type, content = run(sample["source"], **variables)
        assert status == example.status, (name, content)
        declared = operation["responses"][str(status)].get("content", {})
        assert content_type == next(iter(declared), ""), name
        if name == "add_token":
            made["token"] = json.loads(content)["id"]
        elif name == "submit":
            assert json.loads(content)["state"] == "succeeded"
        elif name == "read_output":
            assert content == b"out\n"
