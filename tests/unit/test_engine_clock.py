from __future__ import annotations

import logging

import pytest

from common.clock import ManualClock
from master.clock import EngineClock


def test_it_goes_on_from_the_mark_plus_what_the_wall_says_has_passed() -> None:
    machine = ManualClock()
    clock = EngineClock(machine)
    assert clock.resume((500.0, machine.wall_ms() - 30_000)) == 30.0
    assert clock.now_s() == 530.0
    machine.advance(2.5)
    assert clock.now().engine_s == 532.5
    assert clock.now().wall_ms == machine.wall_ms()


def test_a_fresh_store_begins_at_nothing() -> None:
    clock = EngineClock(ManualClock())
    assert clock.resume((0.0, 0)) == 0.0
    assert clock.now_s() == 0.0


def test_a_date_set_back_while_down_turns_nothing_back() -> None:
    machine = ManualClock()
    clock = EngineClock(machine)
    clock.resume((500.0, machine.wall_ms() + 86_400_000))
    assert clock.now_s() == 500.0


def test_a_date_set_while_it_runs_moves_no_deadline() -> None:
    machine = ManualClock()
    clock = EngineClock(machine)
    clock.resume((500.0, machine.wall_ms()))
    machine.jump_wall(7200.0)
    assert clock.now_s() == 500.0
    machine.jump_wall(-86_400.0)
    machine.advance(1.0)
    assert clock.now_s() == 501.0


@pytest.mark.parametrize(("passed_s", "told"), [(3599.0, False), (3601.0, True)])
def test_a_jump_of_more_than_an_hour_is_logged(passed_s: float, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    machine = ManualClock()
    with caplog.at_level(logging.WARNING, logger="master.clock"):
        EngineClock(machine).resume((10.0, machine.wall_ms() - round(passed_s * 1000)))
    assert ("engine clock jumped" in caplog.text) is told
