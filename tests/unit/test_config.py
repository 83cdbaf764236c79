"""Settings: what is refused, because with it something would spin, never end, or always be late."""

from __future__ import annotations

import pytest

from common.config import load
from common.errors import InvalidRequest


@pytest.mark.parametrize(
    "name",
    [
        "heartbeat",
        "heartbeat_idle",
        "lease",
        "begin_lease",
        "pull_wait",
        "keeper_interval",
        "facts_interval",
        "restart_delay",
    ],
)
@pytest.mark.parametrize("value", ["0", "0.04", "-1", "nan", "inf"])
def test_an_interval_is_never_nothing_and_never_endless(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        load(environ={f"MUSTER_{name.upper()}": value})


def test_no_missed_heartbeat_would_make_every_agent_offline() -> None:
    with pytest.raises(InvalidRequest, match="offline_after"):
        load(environ={"MUSTER_OFFLINE_AFTER": "0"})


def test_what_may_be_nothing_may_be_zero_and_intervals_may_be_short() -> None:
    settings = load(environ={"MUSTER_KILL_GRACE": "0", "MUSTER_DRAIN": "0", "MUSTER_KEEPER_INTERVAL": "0.2"})
    assert (settings.kill_grace, settings.drain, settings.keeper_interval) == (0.0, 0.0, 0.2)


@pytest.mark.parametrize(("name", "value"), [("log_level", "loud"), ("log_format", "xml"), ("log_format", "JSON")])
def test_an_unknown_word_is_refused_before_anything_runs(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} '{value}' is not known: use "):
        load(environ={f"MUSTER_{name.upper()}": value})


def test_words_that_the_log_takes_are_taken_here() -> None:
    # A variable that is set to nothing means the default, as for any other program.
    settings = load(environ={"MUSTER_LOG_LEVEL": "", "MUSTER_LOG_FORMAT": ""}, flags={"log_level": "WARNING"})
    assert (settings.log_level, settings.log_format) == ("WARNING", "")
