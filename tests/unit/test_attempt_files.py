"""An attempt's directory and records: nothing of a person's gets into a path, nothing is there by halves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.attempt import AttemptSpec, ExitRecord, KillStep, Leftover, spec_message
from agent.attempt_files import AttemptFiles, boot_id, find_attempts
from agent.shepherd import check_spec
from common.ids import uuid7

RECORD = ExitRecord(
    run_id=uuid7(),
    attempt=2,
    lease="lease",
    outcome="timeout",
    exit_code=143,
    killed_by_us="timeout",
    pid=4,
    started_at_ms=5,
    ended_at_ms=6,
    duration_s=0.5,
    output_bytes=7,
    gaps=((1, 2),),
    leftovers=(Leftover(pid=8, command="sleep 1"),),
    detail="a sentence",
    steps=(KillStep(at_ms=9, signal="SIGTERM", processes=3),),
)


def files_at(path: Path) -> AttemptFiles:
    return AttemptFiles(str(path), uuid7(), 1)


@pytest.mark.parametrize(
    ("run_id", "attempt"),
    [
        ("", 1),
        ("../../etc/passwd", 1),
        ("01A22D46-8719-7C47-93B9-F11C2D7B3F5B", 1),
        ("01a22d46-8719-7c47-93b9-f11c2d7b3f5b\n", 1),
        ("01a22d46-8719-7c47-93b9-f11c2d7b3f5b", 0),
        ("01a22d46-8719-7c47-93b9-f11c2d7b3f5b", -1),
        ("01a22d46-8719-7c47-93b9-f11c2d7b3f5b", True),
        ("01a22d46-8719-7c47-93b9-f11c2d7b3f5b", "1"),
        (None, 1),
    ],
)
def test_what_is_no_attempts_name_is_refused(run_id: object, attempt: object) -> None:
    with pytest.raises(ValueError, match=r"the (run id|attempt) is not"):
        AttemptFiles("/tmp", run_id, attempt)  # type: ignore[arg-type]


def test_a_script_is_written_for_its_user_alone(tmp_path: Path) -> None:
    files = files_at(tmp_path)
    files.create(b"\0script\xff")
    assert Path(files.script).read_bytes() == b"\0script\xff"
    assert os.stat(files.script).st_mode & 0o777 == 0o400
    assert os.stat(files.path).st_mode & 0o777 == 0o700
    assert find_attempts(str(tmp_path))[0].key == files.key


def test_what_was_only_prepared_is_made_anew_and_what_was_started_is_not(tmp_path: Path) -> None:
    files = files_at(tmp_path)
    files.create(b"first")
    files.create(b"second")
    assert Path(files.script).read_bytes() == b"second"
    assert files.started() is None
    os.close(files.claim(b'{"lease":"l"}\n'))
    with pytest.raises(FileExistsError):
        files.create(b"third")
    with pytest.raises(FileExistsError):
        files.claim(b"{}\n")
    assert Path(files.script).read_bytes() == b"second"
    assert files.started() == ({"lease": "l"}, {})


def test_a_symbolic_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    files = files_at(tmp_path)
    files.create(b"x")
    target = tmp_path / "target"
    os.symlink(target, f"{files.path}/attempt.jsonl")
    with pytest.raises(FileExistsError):
        files.claim(b"{}\n")
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", ({}, {})), (b"\0" * 50, ({}, {})), (b'{"a":1}\n{"pi', ({"a": 1}, {})), (b'{"a":1}\n[1]\n', ({"a": 1}, {}))],
)
def test_a_torn_note_of_the_start_still_says_that_it_was_started(
    tmp_path: Path, content: bytes, expected: tuple[object, object]
) -> None:
    files = files_at(tmp_path)
    files.create(b"x")
    os.close(files.claim(content))
    assert files.started() == expected


def test_an_exit_record_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    files = files_at(tmp_path)
    files.create(b"x")
    assert files.exit() is None
    Path(f"{files.path}/exit.json").write_bytes(b'{"run_id"')
    assert files.exit() is None
    files.write_exit(b'{"outcome":"exit"}')
    assert files.exit() == {"outcome": "exit"}
    assert not Path(f"{files.path}/exit.json.new").exists()
    files.remove()
    assert not files.exists()
    files.remove()


def test_names_that_are_no_attempts_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.1").mkdir()
    (tmp_path / f"{uuid7()}.x").mkdir()
    (tmp_path / f"{uuid7()}.٣").mkdir()
    (tmp_path / uuid7()).mkdir()
    assert find_attempts(str(tmp_path)) == []
    assert find_attempts(str(tmp_path / "missing")) == []


def test_the_boot_id_is_the_kernels(tmp_path: Path) -> None:
    assert len(boot_id()) == 36
    (tmp_path / "id").write_text("other\n")
    assert boot_id(str(tmp_path / "id")) == "other"


def test_a_record_survives_the_wire() -> None:
    assert ExitRecord.from_wire(RECORD.to_wire()) == RECORD
    assert ExitRecord.from_wire({**RECORD.to_wire(), "from_a_newer_shepherd": 1}) == RECORD
    assert RECORD.key == (RECORD.run_id, 2)


@pytest.mark.parametrize(
    "change",
    [{"outcome": "fine"}, {"gaps": 5}, {"gaps": [["a", "b"]]}, {"leftovers": [{"pid": 1}]}, {"steps": [7]}],
)
def test_what_is_no_record_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not an exit record"):
        ExitRecord.from_wire({**RECORD.to_wire(), **change})


def test_a_spec_shows_neither_script_nor_environment_and_its_message_is_what_the_shepherd_takes() -> None:
    spec = AttemptSpec(
        run_id=uuid7(),
        attempt=1,
        lease="l",
        task_id=None,
        script=b"secret-1",
        env={"A": "secret-2"},
        args=("secret-3",),
    )
    assert "secret" not in repr(spec)
    limits = {"kill_grace_s": 1.0, "drain_quiet_s": 0.2, "drain_most_s": 1}
    message = spec_message(spec, interpreter=("/bin/sh",), limits=limits)
    as_json = {**message, "interpreter": ["/bin/sh"], "args": ["secret-3"]}
    check_spec(as_json)
    for name in as_json:
        with pytest.raises(ValueError, match="not valid"):
            check_spec({key: value for key, value in as_json.items() if key != name})
        with pytest.raises(ValueError, match="not valid"):
            check_spec({**as_json, name: {1}})
    with pytest.raises(ValueError, match="hold texts"):
        check_spec({**as_json, "interpreter": []})
