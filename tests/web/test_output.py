"""Output in parts, before a master that counts what it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_web_master import FakeWebMaster
from tests.support.web import Http

MIB = 1024 * 1024


@pytest.fixture
def path(fake: FakeWebMaster) -> str:
    """The output of a run that wrote much to one pipe and little to the other."""
    run: dict[str, Any] = fake.runs_of(fake.task())[0]
    written = ((b"o" * 3 * MIB, 1), (b"first", 2), (b"o" * MIB, 1), (100, 0), (b"second", 2), (b"o", 1))
    for content, stream in written:
        fake.write(run, content, stream=stream)
    return f"runs/{run['id']}/output"


def test_little_of_one_stream_costs_few_calls_however_much_is_in_the_other(
    http: Http, fake: FakeWebMaster, path: str
) -> None:
    answer = http.get(f"{path}?stream=stderr&limit=1")
    assert (answer.body, answer.headers["X-Output-Next"]) == (b"f", str(3 * MIB + 1))
    assert fake.count("read_output") <= 4


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 11, 12])
def test_one_stream_read_part_by_part_is_whole(http: Http, path: str, limit: int) -> None:
    parts, offset = [], 0
    while offset < 4 * MIB + 112:
        answer = http.get(f"{path}?stream=stderr&limit={limit}&offset={offset}")
        parts.append(answer.body)
        offset = int(answer.headers["X-Output-Next"])
        assert len(answer.body) <= limit
    assert b"".join(parts) == b"firstsecond"


def test_an_offset_counts_over_both_streams(http: Http, path: str) -> None:
    assert http.get(f"{path}?stream=stderr&offset={3 * MIB + 2}&limit=6").body == b"rstsec"
    assert http.get(f"{path}?stream=stdout&offset={4 * MIB}&limit=7").body == b"oooooo"
    assert http.get(f"{path}?stream=stderr").body == b"firstsecond"
