"""Output as it was written: every byte, live, in bounded room, and what is missing is said."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from pathlib import Path

from agent.attempt import ExitRecord
from agent.spool_reader import Chunk, Gap
from tests.support.host import Host
from tests.support.processes import until

MIB = 1024 * 1024


def gaps_of(host: Host, record: ExitRecord) -> list[tuple[int, int]]:
    return [(piece.offset, piece.length) for piece in host.pieces(record) if isinstance(piece, Gap)]


def cpu_s(pid: int) -> float:
    """Processor time of a process, its children not counted."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """The largest memory a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def test_bytes_that_are_no_text_come_through(host: Host) -> None:
    every = bytes(range(256))
    script = b"#!/usr/bin/env python3\nimport os\nos.write(1, bytes(range(256)))\nos.write(2, b'\\xff\\xfe')\n"
    record = host.run(script)
    assert host.output(record, stream=1) == every
    assert host.output(record, stream=2) == b"\xff\xfe"
    assert record.output_bytes == 258


def test_twenty_megabytes_without_a_newline(host: Host) -> None:
    record = host.run(b"head -c 20000000 /dev/zero | tr '\\0' x", output_limit=32 * MIB)
    assert (record.outcome, record.exit_code) == ("exit", 0)
    assert host.output(record) == b"x" * 20_000_000
    assert record.gaps == ()


def test_a_flood_stays_in_bounded_room_with_both_ends_intact(host: Host) -> None:
    count = 2_000_000
    script = f"#!/usr/bin/env python3\nfor i in range({count}):\n    print(f'line {{i:044d}}')\n"
    before_s = cpu_s(host.shepherd)
    record = host.run(script.encode(), env={"PYTHONUNBUFFERED": ""})
    assert record.output_bytes == count * 50
    kept = host.output(record)
    assert len(kept) == 16 * MIB
    assert kept[:50] == b"line %044d\n" % 0
    assert kept[-50:] == b"line %044d\n" % (count - 1)
    (gap,) = gaps_of(host, record)
    assert gap == (8 * MIB, count * 50 - 16 * MIB)
    assert peak_bytes(host.shepherd) < 30 * MIB
    assert cpu_s(host.shepherd) - before_s < 2.0
    on_disk = sum(one.stat().st_size for one in (host.path / "attempts" / f"{record.run_id}.1").iterdir())
    assert on_disk < 18 * MIB


def test_very_many_small_writes_are_gathered(host: Host) -> None:
    script = b"#!/usr/bin/env python3\nimport os\nfor i in range(200_000):\n    os.write(1, b'%08d\\n' % i)\n"
    record = host.run(script)
    assert host.output(record) == b"".join(b"%08d\n" % i for i in range(200_000))
    frames = sum(len(piece.segments) for piece in host.pieces(record) if isinstance(piece, Chunk))
    assert frames < 1000


def test_lines_of_the_two_streams_are_never_glued_and_each_keeps_its_order(host: Host) -> None:
    script = b"#!/bin/sh\ni=0\nwhile [ $i -lt 1000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done\n"
    record = host.run(script)
    assert host.output(record, stream=1) == b"".join(b"out %d\n" % i for i in range(1000))
    assert host.output(record, stream=2) == b"".join(b"err %d\n" % i for i in range(1000))
    lines = host.output(record).splitlines()
    assert sorted(lines) == sorted(b"%s %d" % (name, i) for i in range(1000) for name in (b"out", b"err"))


def test_a_line_written_in_two_parts_is_not_torn_by_the_other_stream(host: Host) -> None:
    script = b"""#!/usr/bin/env python3
import os
for i in range(500):
    os.write(1, b"first half, ")
    os.write(2, b"a complaint\\n")
    os.write(1, b"second half\\n")
"""
    record = host.run(script)
    lines = host.output(record).splitlines()
    assert lines.count(b"first half, second half") == 500
    assert lines.count(b"a complaint") == 500


def test_a_progress_bar_is_seen_while_it_grows(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = host.submit(b"printf '\\r10%%'; read x < " + os.fsencode(gate) + b"; printf '\\r99%%'")
    host.wait_output(running.key, 4)
    reader = host.executor.output(*running.key)
    assert reader.read_from(0, 100) == Chunk(0, [(1, 4)], b"\r10%")
    assert reader.read_from(4, 100) is None
    gate.write_text("go\n")
    assert host.output(running.record()) == b"\r10%\r99%"
    reader.close()


def test_output_can_be_read_while_it_is_written(host: Host) -> None:
    count = 5_000_000
    running = host.submit(f"#!/bin/sh\nyes 0123456789abcde | head -c {count * 16}".encode(), output_limit=256 * MIB)
    reader = host.executor.output(*running.key)
    expected = b"0123456789abcde\n" * 4096
    end = 0
    while end < count * 16:
        piece = reader.read_from(end, 65536)
        if piece is None:
            host.wait_output(running.key, end + 1)
            continue
        assert isinstance(piece, Chunk)
        assert piece.data == expected[end % 16 :][: len(piece.data)] or piece.data in expected * 2
        end = piece.end
    assert running.record().output_bytes == count * 16
    reader.close()


def test_what_the_reader_acknowledged_is_no_gap(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    half = f"head -c 1000000 /dev/zero; read x < {gate}\n".encode()
    running = host.submit(half + b"head -c 3000000 /dev/zero\n", output_limit=MIB)
    host.wait_output(running.key, 1_000_000)
    host.executor.acknowledge(*running.key, 900_000)
    gate.write_text("go\n")
    record = running.record()
    assert record.output_bytes == 4_000_000
    assert record.gaps[0][0] == 900_000
    start, length = record.gaps[-1]
    assert 4_000_000 - MIB // 2 - 65536 <= start + length <= 4_000_000 - MIB // 2


def test_a_tiny_limit_keeps_a_tiny_head_and_tail(host: Host) -> None:
    record = host.run(b"printf '%s' abcdefghijklmnopqrstuvwxyz", output_limit=10)
    assert host.output(record) == b"abcdevwxyz"
    assert gaps_of(host, record) == [(5, 16)]
    record = host.run(b"echo hello", output_limit=0)
    assert host.output(record) == b""
    assert gaps_of(host, record) == [(0, 6)]


def test_a_disk_that_takes_nothing_for_a_while_costs_a_gap_and_no_more(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = b"#!/bin/sh\nfor part in a b c; do head -c 100000 /dev/zero | tr '\\0' $part; echo; read x < %b; done\n"
    running = host.submit(script % os.fsencode(gate))
    host.wait_output(running.key, 100_001)
    # A bound for file sizes is the full disk that a test can make and unmake for one process.
    resource.prlimit(host.shepherd, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    opened = os.open(gate, os.O_RDWR)
    os.write(opened, b"go\n")
    host.wait_output(running.key, 200_002)
    resource.prlimit(host.shepherd, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    retry_at = time.monotonic() + 1.0  # the spool waits a second before it tries the disk again
    until(lambda: time.monotonic() > retry_at, "the second between two tries")
    os.write(opened, b"go\ngo\n")
    record = running.record()
    os.close(opened)
    assert (record.outcome, record.exit_code) == ("exit", 0)
    assert record.output_bytes == 300_003
    lost = sum(length for _, length in record.gaps)
    assert record.detail == f"{lost} bytes of output could not be kept on the agent's disk: {os.strerror(errno.EFBIG)}."
    kept = host.output(record)
    assert len(kept) == 300_003 - lost
    assert kept[:100_001] == b"a" * 100_000 + b"\n"
    assert kept[-100_001:] == b"c" * 100_000 + b"\n"
    assert gaps_of(host, record) == [tuple(gap) for gap in record.gaps]


def test_many_attempts_write_at_once_and_each_keeps_its_own(host: Host) -> None:
    running = [host.submit(f"yes {i:03d} | head -c 400000".encode()) for i in range(30)]
    for i, one in enumerate(running):
        assert host.output(one.record()) == (b"%03d\n" % i) * 100_000


def test_a_callers_error_in_its_output_callback_breaks_nothing(host: Host) -> None:
    called = threading.Event()

    def failing(run_id: str, attempt: int, end: int) -> None:
        called.set()
        raise RuntimeError("no")

    host.link.on_output = failing
    running = host.submit(b"echo hello; sleep 0.2; echo again")
    assert called.wait(20)
    assert host.output(running.record()) == b"hello\nagain\n"
