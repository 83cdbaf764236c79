"""The journal: what was noted is known after any crash, and what was delivered takes no room."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agent.attempt import ExitRecord, KillStep, Leftover
from agent.journal import Begin, Journal, OpenEntry
from common.ids import uuid7


def a_begin(**changes: object) -> Begin:
    return replace(Begin(run_id=uuid7(), attempt=1, lease="l", boot_id="b", at_ms=1_700_000_000_000), **changes)  # type: ignore[arg-type]


def an_end(begin: Begin) -> ExitRecord:
    return ExitRecord(
        run_id=begin.run_id,
        attempt=begin.attempt,
        lease=begin.lease,
        outcome="timeout",
        exit_code=143,
        killed_by_us="timeout",
        gaps=((1, 2), (5, 6)),
        leftovers=(Leftover(pid=7, command="sleep 1"),),
        steps=(KillStep(at_ms=1, signal="SIGTERM", processes=2),),
        detail="é",
    )


def entries(path: Path) -> list[OpenEntry]:
    journal = Journal(path)
    found = journal.open_entries()
    journal.close()
    return found


def test_what_was_noted_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    journal = Journal(path)
    one, two, three = a_begin(), a_begin(attempt=2), a_begin()
    journal.begin([one, two])
    journal.begin([three])
    journal.ended(an_end(two))
    journal.delivered([three.key, ("unknown", 1)])
    # What a crash leaves now: the last line waits for company and is not there yet.
    crashed = Path(shutil.copy(path, tmp_path / "crashed.log"))
    assert entries(crashed) == [OpenEntry(one, None), OpenEntry(two, an_end(two)), OpenEntry(three, None)]
    journal.close()
    assert entries(path) == [OpenEntry(one, None), OpenEntry(two, an_end(two))]
    assert path.stat().st_mode & 0o777 == 0o600


def test_delivered_leaves_an_empty_file_at_the_next_opening(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    journal = Journal(path)
    begin = a_begin()
    journal.begin([begin])
    journal.ended(an_end(begin))
    journal.delivered([begin.key])
    journal.close()
    journal.close()
    assert entries(path) == []
    assert path.read_bytes() == b""


@pytest.mark.parametrize("cut", [2, 3, 20, 50, 100, 150, 1000])  # without its line end alone, a line is whole
def test_a_torn_last_line_loses_only_itself(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.log"
    journal = Journal(path)
    first, last = a_begin(), a_begin()
    journal.begin([first])
    whole = path.stat().st_size
    journal.begin([last])
    journal.close()
    os.truncate(path, max(whole, path.stat().st_size - cut))
    assert [entry.begin for entry in entries(path)] == [first]
    again = Journal(path)
    again.begin([last])
    again.close()
    assert [entry.begin for entry in entries(path)] == [first, last]


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    begin = a_begin()
    journal = Journal(path)
    journal.begin([begin])
    journal.close()
    bad = [b"\0" * 100, b"{}", b"[]", b'{"what":"ended","run_id":"x","attempt":1,"record":{"outcome":"odd"}}', b"\xff"]
    path.write_bytes(b"\n".join([*bad[:3], path.read_bytes().strip(), *bad[3:]]) + b"\n")
    assert [entry.begin for entry in entries(path)] == [begin]


def test_an_end_without_its_begin_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    record = an_end(a_begin())
    journal = Journal(path)
    journal.ended(record)
    journal.close()
    (entry,) = entries(path)
    assert entry.record == record
    assert (entry.begin.key, entry.begin.lease) == (record.key, record.lease)


def test_a_large_file_is_written_anew_with_what_is_open(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    journal = Journal(path, compact_bytes=5_000)
    stays = a_begin()
    journal.begin([stays])
    for _ in range(60):
        begin = a_begin()
        journal.begin([begin])
        journal.ended(an_end(begin))
        journal.delivered([begin.key])
        assert path.stat().st_size < 6_000
    journal.close()
    assert [entry.begin for entry in entries(path)] == [stays]


def test_threads_share_their_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.log")
    syncs = 0
    first_sync, go_on = threading.Event(), threading.Event()
    sync = os.fdatasync

    def slow_sync(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        first_sync.set()
        go_on.wait(20)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    begins = [a_begin() for _ in range(21)]
    threads = [threading.Thread(target=journal.begin, args=([begin],)) for begin in begins]
    threads[0].start()
    assert first_sync.wait(20)
    for thread in threads[1:]:
        thread.start()
    while len(journal.open_entries()) < len(begins):
        pass  # all have handed in their lines before the first sync ends
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert syncs == 2
    journal.close()
    assert {entry.begin for entry in entries(tmp_path / "journal.log")} == set(begins)


def test_a_full_disk_lets_nothing_begin_and_harms_no_other_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.log"
    journal = Journal(path)
    first, second, third = a_begin(), a_begin(), a_begin()
    journal.begin([first])
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 10:
            return write(fd, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            journal.begin([second])
    assert [entry.begin for entry in journal.open_entries()] == [first]
    journal.begin([third])
    journal.close()
    assert [entry.begin for entry in entries(path)] == [first, third]


def test_an_end_that_the_disk_did_not_take_is_known_in_memory(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.log")
    begin = a_begin()
    journal.begin([begin])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.ended(an_end(begin))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert journal.open_entries() == [OpenEntry(begin, an_end(begin))]
    journal.close()
