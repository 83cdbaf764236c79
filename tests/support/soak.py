"""A short life of a whole muster under random faults, from one seed: work goes in, daemons die, freeze, are cut off.

`soak(path, seed, seconds)` answers what the history checker finds wrong. Every script writes its own begin and end to a
shared log (one `write` each, so lines stay whole) and prints lines that can be computed again; the checker holds the
master's story against that. Faults: kill -9, STOP and CONT, links cut or held, and the named fault points.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from master.verify import Accepted, Begun, History, Output, check
from muster.client import Client, MusterError, Run, Task
from tests.support.cluster import Daemons
from tests.support.link import Link
from tests.support.processes import until

AGENTS = ("north", "south", "east")
FAULT_POINTS = (
    "after-task-commit", "after-claim-commit", "after-begin-commit", "after-output-commit", "after-result-commit",
    "before-result-commit",
)  # fmt: skip
SCRIPT = """\
echo "begin $MUSTER_TASK_ID $MUSTER_RUN_ID $MUSTER_ATTEMPT $(date +%s.%N)" >> {log}
i=0; while [ $i -lt {lines} ]; do echo "$MUSTER_RUN_ID line $i"; i=$((i+1)); done
sleep {seconds}
echo "end $MUSTER_TASK_ID $MUSTER_RUN_ID $MUSTER_ATTEMPT $(date +%s.%N)" >> {log}
exit {code}
"""
SETTINGS = {"heartbeat": 0.5, "heartbeat_idle": 0.5, "begin_lease": 3.0, "lease": 20.0, "pull_wait": 3.0, "slots": 3}
SETTLE_S = 90.0


@dataclass(slots=True)
class Plan:
    """A submitted task and what its script does."""

    task: Task
    lines: int
    code: int
    parallel: int
    fail_count: int
    cancelled: bool = False


@dataclass(slots=True)
class Life:
    """The system of one soak, and what was done to it."""

    system: Daemons
    links: dict[str, Link]
    dice: random.Random
    log: Path
    plans: list[Plan] = field(default_factory=list)
    shepherd_killed: bool = False
    done: list[str] = field(default_factory=list)


def soak(path: Path, *, seed: int, seconds: float) -> list[str]:
    """Findings of one life of `seconds`, plus the time it takes to settle; each names the seed."""
    dice = random.Random(seed)
    system = Daemons(path, agents=0, settings=SETTINGS)
    link = Link(("127.0.0.1", system.rpc.port))
    system.environ["MUSTER_ADVERTISE"] = link.address
    with link, system:
        life = Life(system, {"all": link}, dice, path / "log")
        for name in AGENTS:
            system.add_agent(name)
        _live(life, seconds)
        _settle(life)
        findings = _judge(life)
    return [f"seed {seed}: {finding}; done: {', '.join(life.done)}" for finding in findings]


def _live(life: Life, seconds: float) -> None:
    acts: list[tuple[int, Callable[[Life], None]]] = [
        (10, _submit), (2, _cancel), (2, _kill_daemon), (1, _kill_agent), (1, _kill_shepherd), (1, _freeze),
        (1, _cut), (1, _at_fault_point),
    ]  # fmt: skip
    weights = [weight for weight, _ in acts]
    ends_at = time.monotonic() + seconds
    _submit(life)
    while time.monotonic() < ends_at:
        (act,) = life.dice.choices([act for _, act in acts], weights)
        life.done.append(act.__name__.removeprefix("_"))
        act(life)
        time.sleep(life.dice.uniform(0.0, 0.4))


def _submit(life: Life) -> None:
    dice = life.dice
    lines = dice.choice([0, 3, 200, 3000])
    code = dice.choice([0, 0, 0, 1])
    script = SCRIPT.format(log=life.log, lines=lines, seconds=dice.choice(["0", "0.3", "1"]), code=code)
    parallel = dice.choice([0, 1, 2])
    fail_count = dice.choice([-1, 1])
    where = {"count": dice.choice([1, 2])} if dice.random() < 0.4 else {"targets": list(AGENTS)}
    task = life.system.client.submit(script, parallel=parallel, fail_count=fail_count, lost_after=0, **where)  # type: ignore[arg-type]
    life.plans.append(Plan(task, lines, code, parallel, fail_count))


def _cancel(life: Life) -> None:
    plan = life.dice.choice(life.plans)
    life.system.client.cancel(plan.task.id)
    plan.cancelled = True


def _kill_daemon(life: Life) -> None:
    role = life.dice.choice(["master", "master", "web"])
    life.system.kill(role)
    time.sleep(life.dice.uniform(0.0, 0.5))
    life.system.begin(role)


def _kill_agent(life: Life) -> None:
    name = life.dice.choice(AGENTS)
    life.system.kill(name)
    time.sleep(life.dice.uniform(0.0, 1.0))
    life.system.restart_agent(name)


def _kill_shepherd(life: Life) -> None:
    name = life.dice.choice(AGENTS)
    if life.system.shepherds(name):
        life.system.kill_shepherd(name)
        life.shepherd_killed = True


def _freeze(life: Life) -> None:
    role = life.dice.choice(["master", "web", *AGENTS])
    life.system.signal(role, signal.SIGSTOP)
    time.sleep(life.dice.uniform(0.1, 2.0))
    life.system.signal(role, signal.SIGCONT)


def _cut(life: Life) -> None:
    link = life.links["all"]
    life.dice.choice([link.cut, link.hold])()
    time.sleep(life.dice.uniform(0.1, 2.0))
    link.restore()


def _at_fault_point(life: Life) -> None:
    """Start the master anew, to die at a named point of its own."""
    point = life.dice.choice(FAULT_POINTS)
    life.done[-1] = point
    life.system.kill("master")
    once = life.system.path / f"once-{len(life.done)}"
    once.mkdir()
    faults = f"{point}=kill@{life.dice.randint(1, 4)}"
    master = life.system.begin("master", environ={"MUSTER_FAULTS": faults, "MUSTER_FAULTS_ONCE": str(once)})
    if life.dice.random() < 0.5:
        _submit_while_dying(life)
    if master.process.poll() is None:
        life.system.kill("master")
    life.system.begin("master")


def _submit_while_dying(life: Life) -> None:
    """A submission whose answer may never come: it counts only if it was answered."""
    client = Client(life.system.url, life.system.token, retry_for_s=0.0, timeout_s=5.0)
    script = SCRIPT.format(log=life.log, lines=1, seconds=0, code=0)
    try:
        task = client.submit(script, targets=list(AGENTS), lost_after=0)
    except (MusterError, OSError):
        return
    life.plans.append(Plan(task, 1, 0, 0, -1))


def _settle(life: Life) -> None:
    for link in life.links.values():
        link.restore()
    life.system.wait_ready()
    ends_at = time.monotonic() + SETTLE_S
    for plan in life.plans:
        left_s = max(1.0, ends_at - time.monotonic())
        plan.task = life.system.client.wait(plan.task.id, timeout_s=left_s)
    until(lambda: not any(agent.held for agent in life.system.client.agents()), "all slots are free again")


def _judge(life: Life) -> list[str]:
    history = History()
    findings = list(life.system.client.verify().findings)
    history.begun = _read_log(life.log)
    begun = {(b.run_id, b.attempt): b for b in history.begun}
    for plan in life.plans:
        history.accepted.append(Accepted(plan.task.id, plan.task.total, parallel=plan.parallel))
        runs = list(life.system.client.runs(plan.task.id))
        history.present[plan.task.id] = len(runs)
        for run in runs:
            findings += _judge_run(life, plan, run, begun.get((run.id, run.attempt)))
            if run.state == "succeeded" or run.outcome == "exit":
                history.outputs.append(_output(life, plan, run))
    return findings + check(history)


def _judge_run(life: Life, plan: Plan, run: Run, begun: Begun | None) -> list[str]:
    where = f"task {plan.task.id}, run {run.id} ({run.state}, {run.outcome}, exit {run.exit_code})"
    ended = begun is not None and begun.until_s is not None
    if not run.final:
        return [f"{where} has not ended"]
    if run.attempt != 1:
        return [f"{where} is at attempt {run.attempt}, nobody asked for a retry"]
    if run.state == "succeeded" and not (ended and plan.code == 0):
        return [f"{where} is said to have succeeded, its script did not"]
    if run.outcome == "exit" and run.exit_code != plan.code and not run.killed_by_us:
        return [f"{where} has another exit code than its script ({plan.code})"]
    if run.state in ("skipped", "expired") and begun is not None:
        return [f"{where} has begun nevertheless"]
    if run.state == "skipped" and plan.fail_count == -1:
        return [f"{where} was skipped without a stop rule"]
    if run.state == "cancelled" and not plan.cancelled:
        return [f"{where} was cancelled by nobody"]
    if run.outcome == "lost":
        return [f"{where} is lost though its task waits for its host"]
    if run.outcome == "interrupted" and not life.shepherd_killed:
        return [f"{where} is interrupted, but no shepherd was killed"]
    return []


def _output(life: Life, plan: Plan, run: Run) -> Output:
    written = "".join(f"{run.id} line {n}\n" for n in range(plan.lines)).encode()
    read = b"".join(life.system.client.output(run.id))
    gaps = [(gap[0], gap[1]) for gap in run.output_gaps]
    kept = [(0, len(read))] if not gaps else []
    return Output(run.id, run.attempt, len(written), kept, gaps, written=written, read=read)


def _read_log(path: Path) -> list[Begun]:
    begun: dict[tuple[str, str], list[Begun]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        word, task_id, run_id, attempt, at = line.split()
        known = begun.setdefault((run_id, attempt), [])
        if word == "begin":
            known.append(Begun(task_id, run_id, int(attempt), float(at)))
        elif known:
            known[-1] = Begun(task_id, run_id, int(attempt), known[-1].at_s, float(at))
    return [one for many in begun.values() for one in many]
