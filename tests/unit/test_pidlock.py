"""The lock file with a process id inside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common import pidlock


def test_the_second_one_is_told_who_has_it(tmp_path: Path) -> None:
    fd = pidlock.take(tmp_path / "a.lock")
    assert (tmp_path / "a.lock").stat().st_mode & 0o777 == 0o600
    with pytest.raises(pidlock.Held, match=f"process {os.getpid()}") as caught:
        pidlock.take(tmp_path / "a.lock")
    assert (caught.value.pid, caught.value.who) == (os.getpid(), f"process {os.getpid()}")
    os.close(fd)
    os.close(pidlock.take(tmp_path / "a.lock"))


def test_what_is_no_process_id_names_nobody(tmp_path: Path) -> None:
    fd = pidlock.take(tmp_path / "a.lock")
    for content in (b"", b"-1\n", b"\xff\xb2", b"twelve"):
        (tmp_path / "a.lock").write_bytes(content)
        with pytest.raises(pidlock.Held, match="another process"):
            pidlock.take(tmp_path / "a.lock")
    os.close(fd)


def test_it_goes_with_the_process_that_was_killed(tmp_path: Path) -> None:
    code = "import sys; from common import pidlock; pidlock.take(sys.argv[1]); print('has it', flush=True); input()"
    words = [sys.executable, "-c", code, str(tmp_path / "a.lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(pidlock.Held) as caught:
            pidlock.take(tmp_path / "a.lock")
        assert caught.value.pid == other.pid
        other.kill()
    os.close(pidlock.take(tmp_path / "a.lock"))


def test_a_name_may_begin_at_an_open_directory_and_a_link_is_refused(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.close(pidlock.take("a.lock", dir_fd=folder))
    (tmp_path / "b.lock").symlink_to(tmp_path / "a.lock")
    with pytest.raises(OSError, match="symbolic"):
        pidlock.take("b.lock", dir_fd=folder)
    os.close(folder)
