"""Something to look at: hosts with names, facts and labels, and tasks in every state a page has to show.

`make(cluster)` answers the tasks by what they show. Hosts are real agents; one has been shut down for good.
"""

from __future__ import annotations

import contextlib
import signal
from typing import Final

from muster.client import Task
from tests.support.cluster import Cluster
from tests.support.processes import until

HOSTS: Final = {
    "web-01": {"role": "web", "site": "fra", "os": "debian-12"},
    "web-02": {"role": "web", "site": "fra", "os": "debian-12"},
    "db-primary": {"role": "database", "site": "fra", "tier": "critical"},
    "batch-worker-17.compute.eu-central.internal.example.net": {"role": "batch", "team": "数据平台"},
    "edge-sha-03": {"role": "edge", "site": "sha", "location": "上海"},
}
OFFLINE: Final = "edge-sha-03"
LONG: Final = "batch-worker-17.compute.eu-central.internal.example.net"
LONG_NAME: Final = (
    "Rotate the certificates of every load balancer, reload what uses them, and check with a handshake from outside "
    "that the new chain is served (change 2026-1187)"
)
# The script's file lies below the state directory of its agent, which is named like it.
UPDATE: Final = r"""
printf '\033[1mUpdating packages\033[0m\n'
for one in openssl curl nginx libc6 tzdata; do printf '\033[32m  ok\033[0m  %s\n' "$one"; done
case "$0" in
*/web-02/*)
    printf '\033[33mwarning:\033[0m /boot is 96 %% full\n' >&2
    echo 'dpkg: error: no space left on device' >&2
    exit 2 ;;
*/batch-worker-17*)
    printf '\033[31mE:\033[0m Could not get lock /var/lib/dpkg/lock-frontend\n' >&2
    exit 100 ;;
esac
printf 'Downloading  10 %%\rDownloading  55 %%\rDownloading 100 %%\n'
echo 'All packages are up to date.'
"""
BACKUP: Final = r"""
printf '\033[36m==>\033[0m 开始备份 /srv/data\n'
for n in 1 2 3 4 5 6; do printf '%s  分区 %d  \033[32m完成\033[0m\n' "$(date +%T)" "$n"; done
echo '备份完成：6 个分区，共 18.4 GB'
"""
WATCH: Final = r"""
n=0
while [ $n -lt 100000 ]; do
    n=$((n + 1))
    printf '\033[90m%s\033[0m GET /health \033[32m200\033[0m %d ms\n' "$(date +%T)" $((n * 7 % 23))
    [ $((n % 9)) = 0 ] && printf '\033[33mslow:\033[0m GET /report 1%d ms\n' $((n * 13 % 900)) >&2
    sleep 0.7
done
"""


def make(cluster: Cluster) -> dict[str, Task]:
    """Fill a cluster that has no local agents; a minute or so."""
    for name, labels in HOSTS.items():
        cluster.add_agent(name)
        cluster.wait_agent(name)
        cluster.client.patch_agent(name, labels=labels)
    _shut_down(cluster, OFFLINE)
    online = [name for name in HOSTS if name != OFFLINE]
    tasks = _ended(cluster, online)
    client = cluster.client
    tasks["running"] = cluster.start_script(WATCH, name="Watch the health checks", targets=["web-01", "db-primary"])
    tasks["waiting"] = client.submit("uname -a", name="Kernel of the edge hosts", targets=[OFFLINE])
    tasks["partly"] = client.submit(
        "sleep 600; true", name=LONG_NAME, targets=list(HOSTS), parallel=1, priority=5, timeout=900
    )
    tasks["paused"] = client.submit("sleep 600", name="Reindex search", targets=online, parallel=1)
    client.pause(tasks["paused"].id)
    return {what: client.task(task.id) for what, task in tasks.items()}


def _ended(cluster: Cluster, online: list[str]) -> dict[str, Task]:
    client = cluster.client
    tasks = {
        "succeeded": client.submit(BACKUP, name="每日数据备份与校验", targets=online),
        "python": client.submit(
            "import platform, sys\nprint(platform.platform())\nprint('on', sys.version)\n",
            name="Which Python",
            interpreter=["python3"],
            targets=online[:2],
        ),
        "failed": client.submit(UPDATE, name="Security updates", targets=online),
        "stopped": client.submit("echo checking; false", name="Canary", targets=online, parallel=1, fail_count=1),
        "timeout": client.submit("echo waiting for the lock; sleep 60", targets=["web-01"], timeout=1.0),
        "markup": client.submit(
            "printf '<b>not bold</b> <script>alert(1)</script>\\n'", name="<b>not bold</b> & more", targets=["web-01"]
        ),
    }
    for task in tasks.values():
        client.wait(task.id, timeout_s=120.0)
    tasks["cancelled"] = cluster.start_script("sleep 600", name="Started by mistake", targets=["web-02"])
    client.cancel(tasks["cancelled"].id)
    with contextlib.suppress(TimeoutError):
        client.wait(tasks["cancelled"].id, timeout_s=30.0)
    return tasks


def _shut_down(cluster: Cluster, name: str) -> None:
    agent = cluster.extra_agents[name]
    agent.send(signal.SIGTERM)
    agent.wait()
    until(lambda: cluster.client.agent(name).state != "online", f"{name} is offline", timeout_s=60.0)
