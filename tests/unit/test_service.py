import os
import signal
from collections.abc import Callable

import gevent
import pytest

from common.clock import ManualClock
from common.service import Loop, Service, ServiceGroup, Signals, StopSignals


class Recorded(Service):
    def __init__(self, name: str, events: list[str], *, broken: bool = False, stuck: bool = False) -> None:
        super().__init__(name)
        self.events, self.broken, self.stuck = events, broken, stuck

    def _begin(self) -> None:
        if self.broken:
            raise OSError("address in use")
        self.events.append(f"+{self.name}")
        self.say("working")

    def _end(self) -> None:
        self.events.append(f"-{self.name}")
        if self.stuck:
            raise OSError("will not go")


class Ticker(Loop):
    """Calls `act` with the time each round and waits as long as it says."""

    def __init__(self, act: Callable[[float], float | None]) -> None:
        super().__init__("ticker", clock=ManualClock(monotonic_s=7.0))
        self.act = act
        self.signals = Signals()

    def step(self, now: float) -> float | None:
        self.say(f"round at {now:g}")
        return self.act(now)


@pytest.fixture
def events() -> list[str]:
    return []


def test_start_and_stop_may_be_called_twice(events: list[str]) -> None:
    service = Recorded("a", events)
    service.stop()
    assert (service.status, service.started) == ("not started", False)
    service.start()
    service.start()
    assert (service.status, service.started) == ("working", True)
    service.stop()
    service.stop()
    assert (service.status, service.started) == ("stopped", False)
    assert events == ["+a", "-a"]


def test_a_service_that_could_not_begin_is_not_started(events: list[str]) -> None:
    service = Recorded("a", events, broken=True)
    with pytest.raises(OSError, match="address"):
        service.start()
    assert (service.status, service.started) == ("could not start", False)
    service.stop()
    assert events == []


def test_a_group_stops_in_reverse_order(events: list[str]) -> None:
    group = ServiceGroup("all", [Recorded(name, events) for name in "abc"])
    group.start()
    assert [service.status for service in group.services] == ["working"] * 3
    group.stop()
    assert events == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_a_group_that_cannot_start_takes_back_what_it_started(events: list[str]) -> None:
    group = ServiceGroup("all", [Recorded("a", events), Recorded("b", events, broken=True), Recorded("c", events)])
    with pytest.raises(OSError, match="address"):
        group.start()
    assert events == ["+a", "-a"]


def test_one_service_that_does_not_stop_leaves_no_other_running(events: list[str]) -> None:
    group = ServiceGroup("all", [Recorded("a", events), Recorded("b", events, stuck=True)])
    group.start()
    group.stop()
    assert events == ["+a", "+b", "-b", "-a"]


def test_signals_cost_nothing_when_nobody_listens_and_come_in_order(events: list[str]) -> None:
    service = Recorded("a", events)
    service.signal("claimed", 1)
    service.signals = Signals()
    service.signal("claimed", 2)
    service.signal("claimed", 3)
    assert service.signals.count("claimed") == 2
    assert [service.signals.wait("claimed"), service.signals.wait("claimed")] == [2, 3]
    with pytest.raises(TimeoutError, match="claimed"):
        service.signals.wait("claimed", timeout_s=0)


def test_a_loop_is_driven_by_hand() -> None:
    times: list[float] = []
    assert Ticker(lambda now: times.append(now) or 1.5).step(12.0) == 1.5
    assert times == [12.0]


def test_a_loop_goes_round_when_woken_or_when_its_wait_is_over() -> None:
    waits: list[float | None] = [0, 0, None, None]
    loop = Ticker(lambda now: waits.pop(0))
    assert loop.signals is not None
    loop.start()
    for _ in range(3):
        loop.signals.wait("round")
    assert waits == [None]
    loop.wake()
    loop.signals.wait("round")
    assert loop.status == "round at 7"
    loop.stop()
    assert loop.status == "stopped"


def test_a_wake_during_a_round_is_not_lost() -> None:
    rounds: list[float] = []

    def wakes_itself_once(now: float) -> None:
        rounds.append(now)
        if len(rounds) == 1:
            loop.wake()

    loop = Ticker(wakes_itself_once)
    assert loop.signals is not None
    loop.start()
    loop.signals.wait("round")
    loop.signals.wait("round")
    loop.stop()
    assert len(rounds) == 2


def test_a_failing_round_does_not_end_the_loop() -> None:
    rounds: list[float] = []

    def fails_first(now: float) -> None:
        rounds.append(now)
        if len(rounds) == 1:
            raise OSError("disk on fire")

    loop = Ticker(fails_first)
    assert loop.signals is not None
    loop.start()
    loop.signals.wait("round")
    assert loop.status == "failed (OSError: disk on fire), next try in 0.2 s"
    loop.wake()
    loop.signals.wait("round")
    assert loop.status == "round at 7"
    loop.stop()


def test_the_pause_after_failures_grows_to_five_seconds() -> None:
    def fails(now: float) -> None:
        raise OSError

    loop = Ticker(fails)
    assert [loop._round() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_loop_may_stop_itself_and_be_started_anew() -> None:
    rounds: list[float] = []

    def stops_itself(now: float) -> None:
        rounds.append(now)
        loop.stop()

    loop = Ticker(stops_itself)
    assert loop.signals is not None
    for expected in (1, 2):
        loop.start()
        loop.signals.wait("round")
        assert (len(rounds), loop.started) == (expected, False)


def test_a_loop_that_does_not_end_is_ended() -> None:
    ended: list[str] = []

    def hangs(now: float) -> None:
        try:
            gevent.get_hub().wait(gevent.get_hub().loop.async_())
        finally:
            ended.append("killed")

    loop = Ticker(hangs)
    loop._stop_timeout_s = 0
    loop.start()
    gevent.idle()
    loop.stop()
    assert ended == ["killed"]


def test_the_first_signal_drains_and_the_second_stops_at_once() -> None:
    seconds: list[str] = []
    stop = StopSignals(on_second=lambda: seconds.append("now"))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.drain.wait(timeout=10)
        assert not stop.stop_now.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.stop_now.wait(timeout=10)
        stop.ask("again")
    finally:
        stop.ignore()
        for number, former in before.items():
            signal.signal(number, former)
    assert seconds == ["now"]
