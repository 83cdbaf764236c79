import contextvars
import logging
import threading

import gevent
import pytest
from gevent.event import Event

from common.clock import ManualClock, SystemClock
from common.loop import POSTS_PER_TURN, LoopLag, ThreadBridge, spawn


def test_calls_of_one_thread_arrive_in_order_and_in_the_loop() -> None:
    bridge = ThreadBridge()
    seen: list[tuple[int, int]] = []
    done = Event()

    def work() -> None:
        for number in range(3 * POSTS_PER_TURN):
            bridge.post(lambda n: seen.append((n, threading.get_ident())), number)
        bridge.post(done.set)

    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(timeout=10)
    thread.join()
    bridge.close()
    assert seen == [(number, threading.get_ident()) for number in range(3 * POSTS_PER_TURN)]


def test_waiting_for_threads_alone_does_not_end_the_loop() -> None:
    bridge = ThreadBridge()
    done = [Event() for _ in range(8)]
    go = threading.Barrier(8)

    def work(number: int) -> None:
        go.wait(10)
        bridge.post(done[number].set)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for event in done:
        event.wait()  # no timeout: without the bridge's watcher this would raise LoopExit
    for thread in threads:
        thread.join()
    bridge.close()


def test_a_call_that_fails_does_not_lose_those_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    bridge = ThreadBridge()
    done = Event()

    def fail() -> None:
        raise RuntimeError("on purpose")

    bridge.post(fail)
    bridge.post(done.set)
    assert done.wait(timeout=10)
    bridge.close()
    assert "on purpose" in caplog.text


def test_a_posted_call_may_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    bridge = ThreadBridge()
    done = Event()
    bridge.post(Event().wait)
    bridge.post(done.set)
    assert done.wait(timeout=10)
    bridge.close()
    assert "Impossible to call blocking function" in caplog.text


def test_a_closed_bridge_says_so_and_drops_what_was_left() -> None:
    bridge = ThreadBridge()
    ran: list[int] = []
    assert bridge.post(ran.append, 1)
    bridge.close()
    bridge.close()
    assert not bridge.post(ran.append, 2)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(bridge.post(ran.append, 3)))
    thread.start()
    thread.join()
    gevent.idle()
    assert (ran, answers) == ([], [False])


def test_a_call_may_close_the_bridge() -> None:
    bridge = ThreadBridge()
    closed = Event()
    late: list[int] = []

    def close() -> None:
        bridge.close()
        closed.set()

    bridge.post(close)
    bridge.post(late.append, 1)
    assert closed.wait(timeout=10)
    assert late == []


def test_a_spawned_greenlet_starts_with_a_copy_of_the_context() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")

    def read_and_change(word: str, *, more: str) -> str:
        before = name.get()
        name.set("changed")
        return before + word + more

    name.set("outer")
    greenlet = spawn(read_and_change, "+", more="!")
    name.set("later")
    assert greenlet.get(timeout=10) == "outer+!"
    assert name.get() == "later"


def test_lag_is_how_much_later_than_due_the_loop_came(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    lag = LoopLag(clock, warn_s=1.0)
    lag.observe()
    assert lag.last_s == 0
    for late_s in (0.0, 0.25, 0.1):
        lag.expect(clock.monotonic_s() + 5)
        clock.advance(5 + late_s)
        lag.observe()
        assert lag.last_s == pytest.approx(late_s)
    assert lag.take_worst_s() == pytest.approx(0.25)
    assert lag.take_worst_s() == pytest.approx(0.1)
    assert caplog.text == ""


def test_a_long_stall_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    lag = LoopLag(clock, warn_s=1.0)
    lag.expect(clock.monotonic_s())
    clock.advance(3)
    with caplog.at_level(logging.WARNING):
        lag.observe()
    assert "late" in caplog.text


def test_a_running_gauge_measures_again_and_again() -> None:
    measured = Event()

    class Counting(LoopLag):
        rounds = 0

        def observe(self) -> None:
            super().observe()
            self.rounds += 1
            if self.rounds == 3:
                measured.set()

    lag = Counting(SystemClock(), interval_s=0.001)
    lag.start()
    lag.start()
    assert measured.wait(timeout=10)
    lag.stop()
    lag.stop()
    assert 0 <= lag.last_s < 5
