"""The history checker: each promise broken once is found, and a history in which all were kept is clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.model import Run, RunState, Task, evolve
from master import verify
from master.store.base import WriteTx
from master.verify import Accepted, Begun, History, Holding, Output, Told, check
from tests.support.fake_agent import MasterHere, exited


def kept() -> History:
    """A history without a fault: two runs, one retried, a window of one."""
    return History(
        accepted=[Accepted("t", runs=2, parallel=1)],
        present={"t": 2},
        begun=[Begun("t", "r1", 1, 0.0, 1.0), Begun("t", "r2", 1, 1.0, 2.0), Begun("t", "r1", 2, 2.0, 3.0)],
        held=[Holding("r1", "l1", "a", 0.0, 1.0), Holding("r1", "l2", "b", 1.0, 3.0)],
        told=[
            Told(0.5, "r1", 1, "running"), Told(1.0, "r1", 1, "failed"), Told(2.5, "r1", 2, "running"),
            Told(3.0, "r1", 2, "succeeded"), Told(4.0, "r1", 2, "succeeded"),
            Told(1.0, "r2", 1, "skipped"), Told(2.0, "r2", 1, "ready"),
        ],
        outputs=[Output("r1", 1, 10, kept=[(0, 4), (8, 2)], gaps=[(4, 4)], written=b"0123456789", read=b"012389")],
    )  # fmt: skip


def test_a_history_in_which_all_was_kept_is_clean() -> None:
    assert check(kept()) == []


def broken(change: Callable[[History], object]) -> list[str]:
    history = kept()
    change(history)
    return check(history)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda h: h.present.pop("t"), "task t was accepted and is gone"),
        (lambda h: h.present.update(t=1), "task t was accepted with 2 runs and has 1"),
        (lambda h: h.begun.append(Begun("t", "r2", 1, 5.0, 6.0)), "run r2: attempt 1 was begun 2 times"),
        (lambda h: h.begun.append(Begun("t", "r3", 1, 0.5, 1.5)), "task t: 2 runs at once, parallel=1"),
        (lambda h: h.held.append(Holding("r1", "l3", "c", 2.0, 2.5)), "run r1 was held under two leases at once"),
        (lambda h: h.held.append(Holding("r9", "l1", "z", 9.0, 9.5)), "lease l1 was given to 2 agents"),
        (
            lambda h: h.told.append(Told(9.0, "r1", 1, "succeeded")),
            "attempt 1 had ended as failed and was then succeeded",
        ),
        (
            lambda h: h.told.append(Told(9.0, "r1", 2, "running")),
            "attempt 2 had ended as succeeded and was then running",
        ),
        (lambda h: h.outputs.append(Output("o", 1, 4, [(0, 3)], [])), "3 bytes of output are accounted for, 4 were"),
        (lambda h: h.outputs.append(Output("o", 1, 4, [(0, 2), (3, 1)], [])), "neither kept nor declared a gap"),
        (lambda h: h.outputs.append(Output("o", 1, 4, [(0, 3), (2, 2)], [])), "output bytes 2 to 3 are twice"),
        (
            lambda h: h.outputs.append(Output("o", 1, 2, [(0, 2)], [], written=b"ab", read=b"ax")),
            "the kept output is not what was written",
        ),
    ],
)
def test_each_broken_promise_is_found(change: Callable[[History], object], finding: str) -> None:
    findings = broken(change)
    assert any(finding in text for text in findings), findings


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    here = MasterHere(tmp_path / "m", manual=True)
    yield here
    here.stop()


def lived(here: MasterHere) -> tuple[Task, Run]:
    """A store with a finished run that wrote three bytes, after a retry."""
    a = here.agent("a")
    view = here.submit(targets=["a"])
    for attempt in (1, 2):
        (claim,) = a.claim()
        a.begin(claim)
        a.write(claim, b"abc")
        a.end(claim, exited(2 - attempt, output_bytes=3))
        if attempt == 1:
            here.web("retry_task", view["id"], "failed")
    task = here.master.store.read(lambda tx: tx.get_task(view["id"]))
    run = here.master.store.read(lambda tx: tx.get_run(claim["run_id"]))
    assert task is not None
    assert run is not None
    return task, run


def test_a_sound_store_has_no_findings_and_says_what_was_looked_at(here: MasterHere) -> None:
    lived(here)
    assert here.web("verify") == {
        "findings": [], "checked": {"tasks": 1, "runs": 1, "attempts": 2, "outputs": 1},
    }  # fmt: skip


def test_pages_and_bounds_change_nothing_in_what_is_counted(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_PAGE", 1)
    monkeypatch.setattr(verify, "_RUNS_PAGE", 1)
    monkeypatch.setattr(verify, "_OUTPUTS_MOST", 1)
    lived(here)
    here.agent("b")
    here.submit(targets=["a", "b"])
    here.submit(targets=["b", "a"])
    assert here.web("verify") == {
        "findings": [], "checked": {"tasks": 3, "runs": 5, "attempts": 2, "outputs": 1},
    }  # fmt: skip


def test_a_broken_store_is_found_out(here: MasterHere) -> None:
    task, run = lived(here)

    def spoil(tx: WriteTx) -> None:
        # As no use-case would: the run reopened beside its task, its output's end moved.
        ending = run.ending
        assert ending is not None
        tx.save_run(evolve(run, ending=evolve(ending, output_bytes=9), version=run.version + 1), expect=run.version)
        tx.save_task(evolve(task, counts={RunState.FAILED.value: 1}, version=task.version + 1), expect=task.version)

    here.master.store.write(spoil)
    findings = here.findings()
    assert any("3 bytes of output are accounted for, 9 were" in text for text in findings), findings
    assert any(task.id in text for text in findings if "output" not in text), findings
