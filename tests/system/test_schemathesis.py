"""The whole OpenAPI document against a real muster, by schemathesis: thousands of fit and unfit requests.

All of its checks hold for every operation: no server error, no status, content type, header or field that is not in
the document, nothing unfit accepted, nothing fit refused, no call without a token. Excluded is nothing; what is bent:

- `positive_data_acceptance` takes 422 as well where the document cannot say what is fit (`UNSAYABLE`).
- waits are cut down, and event streams are left once they are silent (`tests.support.schemathesis_hooks`).

One worker: in threads of CPython 3.11 the parser that hypothesis uses now and then fails ("AST constructor recursion
depth mismatch").

The token in use cannot be revoked (it is that of the file), and agents that are online cannot be forgotten, so
nothing has to be kept out of its way.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from webserver.examples import EXAMPLES

ROOT = Path(__file__).parents[2]
UNSAYABLE = {
    "submit": "targets have to exist, and count cannot be more than there are agents",
    "preview": "the same",
    "list_tasks": "a cursor has to be one that a list answered",
    "list_runs": "the same",
    "list_agents": "the same",
    "list_agent_runs": "the same",
    "patch_agent": "labels are printable as Unicode's tables have it, which no pattern says alike everywhere",
}
CONFIG = f"""
[[operations]]
include-operation-id = [{", ".join(f'"{name}"' for name in UNSAYABLE)}]
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422"]
"""


@pytest.mark.timeout(1800, func_only=True)
def test_the_api_is_what_its_document_says(tmp_path: Path, full: bool) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with Cluster(tmp_path / "m", agents=2) as cluster:
        task = cluster.run("echo hello", count=2)
        run = next(iter(cluster.client.runs(task.id)))
        known = {"task_id": task.id, "run_id": run.id, "agent": cluster.agents[0]}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(tmp_path / "schemathesis.toml")),
                *("run", f"{cluster.url}/api/v1/openapi.json", "--header", f"Authorization: Bearer {cluster.token}"),
                *("--seed", "1", "--generation-database", "none"),
                *("--max-examples", "200" if full else "5", "--workers", "1", "--request-timeout", "30"),
                *("--continue-on-failure", "--no-color", "--output-truncate", "false"),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
                "KNOWN_IDS": json.dumps(known),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        selected, tested = re.findall(r"(?:Selected|Tested): (\d+)", done.stdout)
        assert int(selected) == int(tested) == len(EXAMPLES), "every operation was tested"
        cluster.wait_ready()
        for role in ("master", "web"):
            assert "level=error" not in cluster.logs(role)
