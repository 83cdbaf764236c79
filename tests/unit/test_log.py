import json
import logging
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import log


class State(StrEnum):
    READY = "ready"
    LEASED = "leased"


def record(message: str = "hello", *args: object, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("master.runs", level, "", 0, message, args, None)
    made.created, made.msecs = 1_700_000_000.007, 7.0
    made.__dict__.update(extra)
    return made


def kv(**values: object) -> str:
    return log.KeyValueFormatter("master").format(record(**log.fields(**values)))


@pytest.fixture
def logging_kept() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.logThreads, logging.logProcesses, logging.logMultiprocessing)
    source_file = logging._srcfile
    yield
    root.handlers[:], level, logging.logThreads, logging.logProcesses, logging.logMultiprocessing = before
    root.setLevel(level)
    logging._srcfile = source_file
    logging.captureWarnings(False)
    for name in ("common", "master", "agent", "webserver", "muster"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def written(logging_kept: None) -> Iterator[Any]:
    """Configures logging to a pipe and reads back the lines."""
    reader, writer = os.pipe()

    def configure(**settings: Any) -> None:
        log.configure("master", fd=writer, **settings)

    def lines() -> list[str]:
        os.write(writer, b"\n.")
        text = b""
        while not text.endswith(b"\n."):
            text += os.read(reader, 1 << 16)
        return [line for line in text[:-2].decode().split("\n") if line]

    yield configure, lines
    os.close(reader)
    os.close(writer)


def test_a_line_tells_time_in_utc_level_role_logger_and_message() -> None:
    line = log.KeyValueFormatter("master").format(record("took %d", 3))
    assert line == 'at=2023-11-14T22:13:20.007Z level=info role=master in=master.runs msg="took 3"'


def test_the_second_is_not_kept_for_a_later_record() -> None:
    formatter = log.KeyValueFormatter("master")
    first, second = record(), record()
    second.created += 61
    assert formatter.format(first).split()[0] == "at=2023-11-14T22:13:20.007Z"
    assert formatter.format(second).split()[0] == "at=2023-11-14T22:14:21.007Z"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain-1.2:/x", "plain-1.2:/x"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("a=b", '"a=b"'),
        ("line\nlevel=error", '"line\\nlevel=error"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
        ("c1\x9b31m", '"c1\\u009b31m"'),
        ("\u202egnp.exe", '"\\u202egnp.exe"'),
        ("lone\udcff", '"lone\\udcff"'),
        ("你好", '"你好"'),
        (b"\xff\xfeab", '"\\\\xff\\\\xfeab"'),
        (State.READY, "ready"),
        (True, "true"),
        (12, "12"),
        (0.123456789, "0.123457"),
        (1_700_000_000.25, "1700000000.250"),
    ],
)
def test_values_are_quoted_when_anything_is_unusual(value: object, shown: str) -> None:
    assert kv(value=value).endswith(f" value={shown}")


def test_an_absent_value_is_left_out_of_a_key_value_line() -> None:
    assert "reason" not in kv(reason=None, run_id="r1")


def test_a_long_value_is_cut_and_says_how_much() -> None:
    line = kv(value="x" * 5_000)
    assert len(line) < 1_200
    assert "(4000 more)" in line


def test_reserved_names_may_be_used_as_keys() -> None:
    assert kv(name="n", module="m", args="a", message="t").endswith("name=n module=m args=a message=t")


def test_plain_extra_of_the_standard_library_is_shown_too() -> None:
    line = log.KeyValueFormatter("agent").format(record(run_id="r1", **{"odd key\n": 2}))
    assert " run_id=r1" in line
    assert " odd_key_=2" in line


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=20))
def test_no_text_breaks_a_line_or_reaches_the_terminal_raw(message: str, value: str, key: str) -> None:
    for formatter in (log.KeyValueFormatter("master"), log.JsonFormatter("master")):
        line = formatter.format(record("%s", message, muster_fields={key: value}))
        assert len(line.splitlines()) == 1
        assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in line)
        line.encode("utf-8")


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40) | st.integers() | st.none() | st.booleans()))
def test_a_json_line_gives_back_every_value(values: dict[str, Any]) -> None:
    line = json.loads(log.JsonFormatter("web").format(record(muster_fields=values)))
    own = {"at", "level", "role", "in", "msg"}
    for key, value in values.items():
        assert line[f"{key}_" if key in own else key] == value
    assert line["role"] == "web"
    assert line["msg"] == "hello"


def test_an_exception_stays_on_one_line_with_its_traceback() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        failed = record(exc_info=(ValueError, error, error.__traceback__))
    line = log.KeyValueFormatter("master").format(failed)
    assert 'error="ValueError: first\\nsecond"' in line
    assert "traceback=" in line
    assert "\n" not in line
    assert "raise ValueError" in json.loads(log.JsonFormatter("master").format(failed))["traceback"]


def test_change_writes_one_line_with_both_states(written: Any) -> None:
    configure, lines = written
    configure()
    logger = logging.getLogger("master.runs")
    log.change(logger, "run", run_id="r1", from_=State.READY, to=State.LEASED, agent_id="a1")
    log.change(logger, "run", run_id="r1", from_="leased", to="ready", level=logging.DEBUG)
    (line,) = lines()
    assert line.endswith("level=info role=master in=master.runs msg=run from=ready to=leased run_id=r1 agent_id=a1")


def test_the_level_is_ours_and_other_libraries_are_heard_from_warning_on(written: Any) -> None:
    configure, lines = written
    configure(level="debug", log_format="json")
    logging.getLogger("agent.link").debug("ours")
    logging.getLogger("alembic").info("theirs")
    logging.getLogger("alembic").warning("theirs, loud")
    assert [json.loads(line)["msg"] for line in lines()] == ["ours", "theirs, loud"]


def test_the_environment_chooses_format_and_level(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configure, lines = written
    monkeypatch.setenv("MUSTER_LOG_FORMAT", "json")
    monkeypatch.setenv("MUSTER_LOG_LEVEL", "ERROR")
    configure()
    logging.getLogger("master").warning("unheard")
    logging.getLogger("master").error("heard")
    assert [json.loads(line)["level"] for line in lines()] == ["error"]


@pytest.mark.parametrize("settings", [{"log_format": "xml"}, {"level": "loud"}])
def test_an_unknown_word_is_refused_with_the_known_ones(settings: dict[str, str], logging_kept: None) -> None:
    with pytest.raises(ValueError, match="use one of"):
        log.configure("master", **settings)


def test_a_closed_log_drops_lines_and_raises_nothing(logging_kept: None) -> None:
    reader, writer = os.pipe()
    log.configure("master", fd=writer)
    os.close(reader)
    os.close(writer)
    logging.getLogger("master").error("into the void")


def test_a_value_that_cannot_be_shown_stops_nothing(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class Stubborn:
        def __str__(self) -> str:
            raise RuntimeError("no")

    configure, lines = written
    configure()
    logging.getLogger("master").info("odd", extra=log.fields(value=Stubborn()))
    logging.getLogger("master").info("next")
    assert [line.split("msg=")[1] for line in lines()] == ["next"]
    assert "RuntimeError" in capsys.readouterr().err
