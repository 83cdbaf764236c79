"""Output on its way in: acknowledged, repeated, late, foreign, gaps; a result waits for it; the feed's rows of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.config import Settings
from master.output import OutputStore
from tests.support.fake_agent import FakeAgent, MasterHere, exited, master_here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def begun(here: MasterHere, agent: FakeAgent, **request: Any) -> dict[str, Any]:
    here.submit(targets=[agent.name], **request)
    (claim,) = agent.claim()
    agent.begin(claim)
    return claim


def read(here: MasterHere, claim: dict[str, Any], stream: str = "all", attempt: int | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = here.web("read_output", claim["run_id"], attempt, stream, 0, 1 << 20)
    return answer


def gap(agent: FakeAgent, claim: dict[str, Any], offset: int, length: int) -> Any:
    chunk = {"run_id": claim["run_id"], "attempt": claim["attempt"], "lease": claim["lease"]}
    return agent.call("output", [{**chunk, "offset": offset, "gap": length}])


def test_bytes_come_back_as_written_in_order_by_stream(here: MasterHere) -> None:
    a = here.agent("a")
    claim = begun(here, a)
    assert a.write(claim, b"\xff\xfe out\n")["acked"] == {claim["run_id"]: 7}
    assert a.write(claim, b"err\r\n", offset=7, stream=2)["acked"] == {claim["run_id"]: 12}
    assert read(here, claim)["data"] == b"\xff\xfe out\nerr\r\n"
    assert read(here, claim, "stdout")["data"] == b"\xff\xfe out\n"
    assert read(here, claim, "stderr")["data"] == b"err\r\n"
    assert not read(here, claim)["ended"]
    assert here.web("get_run", claim["run_id"])["output_bytes"] == 12
    a.end(claim, exited(0, output_bytes=12))
    assert read(here, claim)["ended"]


def test_a_chunk_sent_twice_is_stored_once_and_one_too_far_ahead_not_yet(here: MasterHere) -> None:
    a = here.agent("a")
    claim = begun(here, a)
    a.write(claim, b"abc")
    assert a.write(claim, b"abc")["acked"] == {claim["run_id"]: 3}
    assert a.write(claim, b"xyz", offset=10)["acked"] == {claim["run_id"]: 3}
    assert a.write(claim, b"cde", offset=2)["acked"] == {claim["run_id"]: 5}
    assert read(here, claim)["data"] == b"abcde"


def test_far_above_its_budget_the_master_takes_no_more_and_says_from_where_to_go_on(
    here: MasterHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = here.agent("a")
    claim, other = begun(here, a), begun(here, a)
    a.write(claim, b"abc")
    with monkeypatch.context() as full:
        full.setattr(OutputStore, "pending_bytes", property(lambda self: 2 * here.settings.output_budget))
        assert a.write(claim, b"def", offset=3) == {"acked": {claim["run_id"]: 3}, "slow": True}
        assert a.write(other, b"def", offset=9) == {"acked": {other["run_id"]: 0}, "slow": True}
    assert a.write(claim, b"def", offset=3) == {"acked": {claim["run_id"]: 6}, "slow": False}
    assert read(here, claim)["data"] == b"abcdef"


def test_a_result_waits_for_the_output_up_to_its_end(here: MasterHere) -> None:
    a = here.agent("a")
    claim = begun(here, a)
    a.write(claim, b"abc")
    (answer,) = a.ends([(claim, exited(0, output_bytes=6))])
    assert answer == {"run_id": claim["run_id"], "taken": "need_output", "acked": 3}
    assert here.web("get_run", claim["run_id"])["state"] == "running"
    a.write(claim, b"def", offset=3)
    assert a.end(claim, exited(0, output_bytes=6)) == "stored"
    assert here.web("get_run", claim["run_id"])["output_bytes"] == 6


def test_the_master_itself_says_what_is_kept(here: MasterHere) -> None:
    a = here.agent("a")
    whole, gapped, late = begun(here, a), begun(here, a), begun(here, a)
    a.write(whole, b"abc")
    a.write(whole, b"def", offset=3)
    a.write(gapped, b"abc")
    gap(a, gapped, 3, 100)
    a.write(gapped, b"def", offset=103)
    a.end(whole, exited(0, output_bytes=6, output_sha256="f" * 64))
    a.end(gapped, exited(0, output_bytes=106))
    a.write(late, b"abcdef")
    here.restart(a)  # what was remembered of it is gone
    a.register(held=[[late["run_id"], 1, late["lease"]]])
    a.end(late, exited(0, output_bytes=6))

    def stored(claim: dict[str, Any]) -> Any:
        run = here.master.store.read(lambda tx: tx.get_run(claim["run_id"]))
        assert run is not None
        return run.ending

    sha256 = hashlib.sha256(b"abcdef").hexdigest()
    assert [stored(claim).output_sha256 for claim in (whole, gapped, late)] == [sha256] * 3
    assert [list(g) for g in stored(gapped).output_gaps] == [[3, 100]]
    assert read(here, gapped)["gaps"] == [[3, 100]]


def test_output_of_another_agents_run_is_not_stored_and_not_asked_for_again(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    claim = begun(here, a)
    assert b.write(claim, b"forged")["acked"] == {claim["run_id"]: 6}
    assert b.write({**claim, "lease": "guess"}, b"forged")["acked"] == {claim["run_id"]: 6}
    assert read(here, claim)["data"] == b""


def test_output_behind_the_told_end_of_an_attempt_is_dropped(here: MasterHere) -> None:
    a = here.agent("a")
    claim = begun(here, a)
    a.write(claim, b"abc")
    a.end(claim, exited(0, output_bytes=3))
    assert a.write(claim, b"more", offset=3)["acked"] == {claim["run_id"]: 7}
    assert read(here, claim)["data"] == b"abc"


def test_output_of_a_run_given_up_as_lost_is_still_worth_keeping(here: MasterHere) -> None:
    a = here.agent("a")
    claim = begun(here, a, lost_after=20.0)
    here.advance(21.0, step=1.0)
    assert here.web("get_run", claim["run_id"])["outcome"] == "lost"
    assert a.write(claim, b"the end")["acked"] == {claim["run_id"]: 7}
    assert a.end(claim, exited(0, output_bytes=7)) == "late"
    assert read(here, claim)["data"] == b"the end"


def test_each_attempt_has_its_own_output(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    for number, text in enumerate((b"first", b"second"), 1):
        (claim,) = a.claim()
        a.begin(claim)
        a.write(claim, text)
        a.end(claim, exited(1, output_bytes=len(text)))
        if number == 1:
            here.web("retry_task", task["id"], "failed")
    assert read(here, claim)["data"] == b"second"
    assert read(here, claim, attempt=1)["data"] == b"first"
    assert read(here, claim, attempt=1)["ended"]


def test_head_and_tail_are_kept_within_the_limit(here: MasterHere) -> None:
    a = here.agent("a")
    claim = begun(here, a, output_limit=4096)
    text = bytes(range(256)) * 64
    for offset in range(0, len(text), 1024):
        a.write(claim, text[offset : offset + 1024], offset=offset)
    assert a.end(claim, exited(0, output_bytes=len(text))) == "stored"
    run = here.web("get_run", claim["run_id"])
    ((start, length),) = run["output_gaps"]
    data = read(here, claim)["data"]
    assert len(data) + length == len(text)
    assert data == text[:start] + text[start + length :]


@pytest.mark.parametrize(
    "wrong", [{"offset": -1}, {"segments": [[1, 2]]}, {"segments": [[9, 3]]}, {"gap": 5}, {"data": "text"}]
)
def test_a_chunk_that_cannot_be_is_refused(here: MasterHere, wrong: dict[str, Any]) -> None:
    a = here.agent("a")
    claim = begun(here, a)
    chunk = {
        "run_id": claim["run_id"], "attempt": 1, "lease": claim["lease"], "offset": 0, "segments": [[1, 3]],
        "data": b"abc",
    }  # fmt: skip
    with pytest.raises(Exception, match=r".") as refused:
        a.call("output", [{**chunk, **wrong}])
    assert getattr(refused.value, "code", "") == "invalid_request"
    assert read(here, claim)["data"] == b""


def test_agents_are_slowed_down_above_the_budget(tmp_path: Path) -> None:
    with master_here(tmp_path / "m", manual=True, settings=Settings(output_budget=0)) as here:
        a = here.agent("a")
        claim = begun(here, a)
        assert not a.write(claim, b"abc")["slow"]
        here.master.output._pending_bytes += 1
        assert a.write(claim, b"def", offset=3)["slow"]
        here.master.output._pending_bytes -= 1


def output_rows(here: MasterHere, after: int) -> list[list[Any]]:
    return [row for row in here.web("feed", after, 0, 500)["events"] if row[1] == "output"]


def test_growing_output_is_told_in_measure_and_not_after_the_end(here: MasterHere) -> None:
    a = here.agent("a")
    claim = begun(here, a)
    after = here.web("feed", -1, 0, 1)["last"]
    news = here.master.output_news
    news.stop()  # rounds by hand
    assert here.clock is not None

    def round_after(seconds: float) -> None:
        assert here.clock is not None
        here.clock.advance(seconds)
        news.step(here.clock.monotonic_s())

    a.write(claim, b"a")
    round_after(0.04)
    assert output_rows(here, after) == []
    a.write(claim, b"b", offset=1)
    round_after(0.02)
    assert [row[4] for row in output_rows(here, after)] == [2]
    for offset in range(2, 10):
        a.write(claim, b"c", offset=offset)
        round_after(0.02)
    assert [row[4] for row in output_rows(here, after)] == [2]
    round_after(0.1)
    assert [row[4] for row in output_rows(here, after)] == [2, 10]
    a.write(claim, b"d", offset=10)
    a.end(claim, exited(0, output_bytes=11))
    round_after(1.0)
    assert [row[4] for row in output_rows(here, after)] == [2, 10]
