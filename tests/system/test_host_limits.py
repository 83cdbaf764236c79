"""What a host has too little of, threads and open files, and what then happens."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from tests.support.host import Host, spec_of


def test_a_run_refused_for_want_of_a_thread_never_runs(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, gate = tmp_path / "ran", tmp_path / "gate"
    host.run(b"true")  # the pool has its one thread
    first = host.executor.submit(spec_of(f"until [ -e {gate} ]; do sleep 0.05; done".encode()))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("attempt"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="no more threads"):
        host.executor.submit(spec_of(f"touch {mark}".encode()))
    with pytest.raises(OSError, match="no more threads"):
        host.executor.prepare([spec_of(b"true")])
    gate.touch()
    assert first.result(30).exit_code == 0
    assert host.run(b"true").exit_code == 0  # by the same thread, behind what was refused
    assert not mark.exists()
    assert host.executor.running() == []


def test_the_shepherd_may_open_many_files_and_scripts_get_the_usual_limit(host: Host) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = resource.prlimit(host.shepherd, resource.RLIMIT_NOFILE)
    assert own == (hard, hard)
    record = host.run(b"ulimit -Sn; ulimit -Hn")
    assert host.output(record).split() == [str(soft).encode(), str(hard).encode()]
