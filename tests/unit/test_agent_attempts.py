"""From the fork to the delivered result: reporter and course together, over a scripted master."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import gevent
import pytest

from agent.attempt import AttemptKey, ExitRecord, KillStep, Leftover
from agent.attempts import Attempts
from agent.executor import AdoptedAttempt
from agent.holdings import Holding, Stage
from agent.output import OutputSender
from agent.reporter import Reporter, ending_of
from common.errors import CallTimeout, StoreFull, TooLarge
from common.loop import ThreadBridge
from common.model import Ending, Outcome
from common.wire import from_wire
from tests.support.agent_parts import FakeExecutor, Parts, ScriptedMaster

RUN = "0192f0c8-0000-7000-8000-000000000001"
KEY = (RUN, 1)


def record(**changes: Any) -> ExitRecord:
    return ExitRecord(
        **{"run_id": RUN, "attempt": 1, "lease": "l1", "outcome": "exit", "exit_code": 0, "pid": 7, **changes}
    )


class Course(Parts):
    """Attempts, reporter and sender over a scripted master."""

    def __init__(self, bridge: ThreadBridge) -> None:
        super().__init__(ScriptedMaster())
        self.master.answers["result"] = [self._take]
        self.words: dict[str, Any] = {}
        self.executor = FakeExecutor()
        self.forgotten: list[AttemptKey] = []
        self.executor.forget = self.forgotten.extend  # type: ignore[attr-defined]
        self.sender = OutputSender(
            link=self.link, holdings=self.holdings, spools=self, most_bytes=1024, clock=self.clock
        )
        self.reporter = Reporter(link=self.link, clock=self.clock)
        self.attempts = Attempts(
            holdings=self.holdings, executor=self.executor, output=self.sender, reporter=self.reporter, bridge=bridge,
        )  # fmt: skip
        self.sender.on_complete = self.attempts.output_complete
        self.reporter.on_taken = self.attempts.taken
        self.reporter.on_need_output = self.attempts.output_lacking

    def output(self, run_id: str, attempt: int) -> Any:
        return self

    def read_from(self, offset: int, max_bytes: int) -> None:
        return None

    def ended(self, total: int) -> None:
        pass

    def close(self) -> None:
        pass

    def acknowledge(self, run_id: str, attempt: int, offset: int) -> None:
        pass

    def _take(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self.words.get(one["run_id"]) or {"run_id": one["run_id"], "taken": "stored"} for one in results]

    def run(self, attempt: int = 1) -> tuple[Holding, Future[ExitRecord]]:
        holding = Holding(RUN, attempt, f"l{attempt}", Stage.RUNNING)
        self.holdings.add(holding)
        future: Future[ExitRecord] = Future()
        self.attempts.begun(holding, future)
        return holding, future

    def end(self, future: Future[ExitRecord], told: ExitRecord) -> None:
        future.set_result(told)
        gevent.idle()

    def told(self) -> list[Ending]:
        return [from_wire(Ending, one["ending"]) for batch in self.master.sent("result") for one in batch]

    def deliver(self) -> float | None:
        return self.reporter.step(self.now)


@pytest.fixture
def here() -> Iterator[Course]:
    bridge = ThreadBridge()
    yield Course(bridge)
    bridge.close()


def test_an_end_is_told_and_then_forgotten(here: Course) -> None:
    free: list[int] = []
    here.attempts.on_slot_free = lambda: free.append(here.holdings.active)
    _, future = here.run()
    here.end(future, record(exit_code=3))
    assert free == [0]
    assert here.holdings.triples(ended=True) == [[RUN, 1, "l1"]]
    assert here.deliver() is None
    (ending,) = here.told()
    assert (ending.outcome, ending.exit_code) == (Outcome.EXIT, 3)
    assert ending.output_sha256 == hashlib.sha256().hexdigest()
    assert here.forgotten == [KEY]
    assert len(here.holdings) == 0


@pytest.mark.parametrize("word", ["stored", "repeat", "late"])
def test_whatever_the_master_calls_it_the_result_is_done_with(here: Course, word: str) -> None:
    here.words[RUN] = {"run_id": RUN, "taken": word}
    _, future = here.run()
    here.end(future, record())
    here.deliver()
    assert here.forgotten == [KEY]


def test_a_result_without_an_answer_is_told_again(here: Course) -> None:
    take = here.master.answers["result"][0]
    here.master.answers["result"] = [CallTimeout(), StoreFull(), "nonsense", [{"run_id": RUN, "taken": "what"}], take]
    _, future = here.run()
    here.end(future, record())
    for _ in range(4):
        assert (here.deliver() or 0) > 0
        assert here.forgotten == []
    here.deliver()
    assert here.forgotten == [KEY]


def test_results_too_large_for_one_message_go_in_smaller_ones(here: Course) -> None:
    take = here.master.answers["result"][0]
    here.master.answers["result"] = [
        lambda results: take(results) if len(results) <= 2 else (_ for _ in ()).throw(TooLarge("too large"))
    ]
    for number in range(5):
        run_id = f"{RUN[:-1]}{number}"
        holding = Holding(run_id, 1, "l1", Stage.RUNNING)
        here.holdings.add(holding)
        future: Future[ExitRecord] = Future()
        here.attempts.begun(holding, future)
        here.end(future, record(run_id=run_id, detail="x" * 100_000))
    for _ in range(20):
        here.deliver()
    assert len(here.forgotten) == 5
    assert all(ending.detail is not None and len(ending.detail) <= 2000 for ending in here.told())


def test_results_wait_for_the_master(here: Course) -> None:
    here.master.connected = False
    here.link.connection_changed("no connection")
    _, future = here.run()
    here.end(future, record())
    assert here.deliver() is None
    assert here.told() == []
    assert here.reporter.status == "1 results wait on disk until the master is back"


def test_two_attempts_of_a_run_are_told_one_after_the_other(here: Course) -> None:
    for attempt in (1, 2):
        _, future = here.run(attempt)
        here.end(future, record(attempt=attempt, lease=f"l{attempt}"))
    assert here.deliver() == 0.0
    here.deliver()
    assert [len(batch) for batch in here.master.sent("result")] == [1, 1]
    assert here.forgotten == [(RUN, 1), (RUN, 2)]


def test_a_master_that_lacks_output_gets_it_and_is_not_asked_at_full_speed(here: Course) -> None:
    here.words[RUN] = {"run_id": RUN, "taken": "need_output", "acked": 0}
    _, future = here.run()
    here.end(future, record())
    assert (here.deliver() or 0) > 0
    assert here.reporter.waiting == 1
    assert here.forgotten == []
    del here.words[RUN]
    here.deliver()
    assert here.forgotten == [KEY]


def test_an_adopted_attempt_that_had_ended_is_told(here: Course) -> None:
    future: Future[ExitRecord] = Future()
    future.set_result(record(outcome="signal", exit_code=None, signal="SIGKILL"))
    here.attempts.adopt([AdoptedAttempt(run_id=RUN, attempt=1, lease="l1", future=future)])
    gevent.idle()
    here.deliver()
    assert [ending.outcome for ending in here.told()] == [Outcome.SIGNAL]


def never_started(outcome: str = "interrupted") -> AdoptedAttempt:
    future: Future[ExitRecord] = Future()
    future.set_result(record(outcome=outcome, exit_code=None, pid=None, detail="nothing ran"))
    return AdoptedAttempt(run_id=RUN, attempt=1, lease="l1", future=future)


def test_a_claim_of_a_former_process_is_told_only_if_the_master_says_it_began(here: Course) -> None:
    here.attempts.adopt([never_started()])
    assert here.holdings.triples(ended=True) == []
    assert here.holdings.leases() == {}
    assert here.attempts.reconcile({"running": [[RUN, 1, "l1", 0]]}, set(), rebooted=False) == 0
    here.deliver()
    assert [(ending.outcome, ending.detail) for ending in here.told()] == [(Outcome.INTERRUPTED, "nothing ran")]
    assert here.forgotten == [KEY]


def test_a_claim_of_a_former_process_that_did_not_begin_is_dropped_in_silence(here: Course) -> None:
    here.attempts.adopt([never_started()])
    here.attempts.reconcile({"running": []}, set(), rebooted=False)
    here.deliver()
    assert here.told() == []
    assert here.executor.abandoned == [KEY]
    assert len(here.holdings) == 0


@pytest.mark.parametrize("rebooted", [False, True])
def test_what_only_the_master_knows_is_reported(here: Course, rebooted: bool) -> None:
    assert here.attempts.reconcile({"running": [[RUN, 4, "l4", 99]]}, set(), rebooted=rebooted) == 1
    assert here.holdings.triples(ended=True) == [[RUN, 4, "l4"]]
    here.deliver()
    (ending,) = here.told()
    assert ending.outcome is (Outcome.REBOOTED if rebooted else Outcome.INTERRUPTED)
    assert ending.output_bytes == 99, "what the master has of its output is all there is"
    assert ending.detail
    assert here.forgotten == [], "the executor never had it"
    assert len(here.holdings) == 0


def test_what_was_named_in_the_question_is_not_unknown(here: Course) -> None:
    # Its result was taken while the register was under way.
    assert here.attempts.reconcile({"running": [[RUN, 1, "l1", 0]]}, {KEY}, rebooted=False) == 0
    assert len(here.holdings) == 0


def test_an_unknown_run_whose_output_the_master_lacks_is_told_with_what_there_is(here: Course) -> None:
    here.attempts.reconcile({"running": [[RUN, 1, "l1", 99]]}, set(), rebooted=True)
    here.words[RUN] = {"run_id": RUN, "taken": "need_output", "acked": 50}
    here.deliver()
    del here.words[RUN]
    here.deliver()
    assert [(ending.outcome, ending.output_bytes) for ending in here.told()] == [
        (Outcome.REBOOTED, 99),
        (Outcome.REBOOTED, 50),
    ]


def test_a_refused_run_is_told_without_the_executor(here: Course) -> None:
    holding = Holding(RUN, 1, "l1", Stage.ENDED, refusal="not here")
    here.holdings.add(holding)
    here.attempts.refused(holding)
    here.deliver()
    assert [(ending.outcome, ending.detail) for ending in here.told()] == [(Outcome.REFUSED, "not here")]
    assert here.forgotten == []


def test_an_executor_that_lets_go_tells_no_end(here: Course) -> None:
    _, future = here.run()
    future.set_exception(CancelledError())
    gevent.idle()
    assert here.holdings.active == 1
    assert here.deliver() is None


def test_the_ending_says_all_the_record_does() -> None:
    full = record(
        outcome="timeout", exit_code=None, signal="SIGKILL", killed_by_us="timeout", started_at_ms=1, ended_at_ms=2,
        duration_s=1.5, output_bytes=10, leftovers=(Leftover(pid=7, command="sl\udcffeep"),),
        steps=(KillStep(at_ms=1, signal="SIGTERM", processes=2),),
    )  # fmt: skip
    ending = ending_of(full, gaps=[(6, 2), (2, 2), (4, 2), (9, 1)], output_sha256="x")
    assert ending.outcome is Outcome.TIMEOUT
    assert ending.killed_by_us
    assert ending.output_gaps == [(2, 6), (9, 1)]
    assert ending.leftovers[0].command == "sl\\udcffeep"
    assert ending.steps == [(1, "SIGTERM to 2 processes")]
    assert ending.detail is None


def test_scripts_that_the_agents_end_took_along_say_so() -> None:
    ending = ending_of(record(outcome="interrupted", killed_by_us="stop"), gaps=[])
    assert ending.detail == "The agent was stopped while this script was running."
