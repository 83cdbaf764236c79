import pytest
from hypothesis import given
from hypothesis import strategies as st

from webserver.sse import ID_STEP, Entry, EventLog, Mark, Progress, event, output_event, pieces, trim, with_id


def entry(log: EventLog, seq: int, *, whole: bool = True, run_id: str | None = None, mark: Mark | None = None) -> Entry:
    event_id = log.next_id(seq, whole=whole)
    return Entry(event_id, with_id(event("run", b"{}"), event_id), run_id, mark)


def test_an_event_has_its_kind_its_data_its_id_and_an_end() -> None:
    assert with_id(event("task", b'{"a":1}'), 7) == b'event: task\ndata: {"a":1}\nid: 7\n\n'


def test_output_is_told_in_base64() -> None:
    [piece] = pieces({"attempt": 2, "data": b"\xff\n", "segments": [[3, 2, 2]]})
    expected = b'{"run_id":"r","attempt":2,"stream":"stderr","offset":3,"data":"/wo="}'
    assert output_event("r", piece) == event("output", expected)
    assert piece.mark == Mark(2, 5)


def test_neighbours_of_one_pipe_are_joined_but_not_over_a_gap_or_another_pipe() -> None:
    answer = {"attempt": 1, "data": b"aabbccdd", "segments": [[0, 1, 2], [2, 1, 2], [4, 2, 2], [9, 2, 2]]}
    found = [(piece.stream, piece.offset, piece.content) for piece in pieces(answer)]
    assert found == [("stdout", 0, b"aabb"), ("stderr", 4, b"cc"), ("stderr", 9, b"dd")]


def test_ids_grow_and_a_whole_row_has_the_id_of_its_row() -> None:
    log = EventLog(base_id=4 * ID_STEP)
    found = []
    for seq, whole in ((5, False), (5, False), (5, True), (6, True), (6, True), (9, False)):
        made = entry(log, seq, whole=whole)
        log.append(made, limit=10_000)
        found.append(made.id)
    step = ID_STEP
    assert found == [4 * step + 1, 4 * step + 2, 5 * step, 6 * step, 6 * step + 1, 8 * step + 1]


def test_a_client_goes_on_behind_the_event_it_saw_last() -> None:
    log = EventLog(base_id=ID_STEP)
    log.set_base("old", Mark(1, 50))
    for seq, offset in ((2, 10), (3, 20), (4, 30)):
        log.append(entry(log, seq, run_id="r", mark=Mark(1, offset)), limit=10_000)
    assert log.place(ID_STEP) == (0, {"old": Mark(1, 50)})
    assert log.place(3 * ID_STEP) == (2, {"old": Mark(1, 50), "r": Mark(1, 20)})
    assert log.place(4 * ID_STEP) == (3, {"old": Mark(1, 50), "r": Mark(1, 30)})


@pytest.mark.parametrize("event_id", [0, 1, ID_STEP - 1, 2 * ID_STEP + 1, 10**17])
def test_an_id_from_before_the_log_or_from_the_future_has_no_place(event_id: int) -> None:
    log = EventLog(base_id=ID_STEP)
    log.append(entry(log, 2), limit=10_000)
    assert log.place(event_id) is None


def test_a_log_from_the_very_beginning_does_not_take_id_0_for_a_place() -> None:
    log = EventLog(base_id=0)
    log.append(entry(log, 1), limit=1000)
    assert log.place(0) is None and log.place(ID_STEP) == (1, {})


def test_what_went_out_of_the_log_still_counts_as_published() -> None:
    log = EventLog(base_id=ID_STEP)
    for seq in range(2, 12):
        log.append(entry(log, seq, run_id="r", mark=Mark(1, seq)), limit=100)
    assert log.start > 0 and log.end == 10
    assert log.place(5 * ID_STEP) is None
    oldest = log[log.start]
    position, marks = log.place(oldest.id) or (None, {})
    assert (position, marks) == (log.start + 1, {"r": oldest.mark})


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=40), st.integers(50, 400))
def test_any_id_in_the_log_finds_the_events_behind_it(steps: list[tuple[bool, int]], limit: int) -> None:
    log, seq = EventLog(base_id=ID_STEP), 1
    ids = []
    for whole, ahead in steps:
        seq += ahead
        made = entry(log, seq, whole=whole, run_id="r", mark=Mark(1, seq))
        log.append(made, limit=limit)
        ids.append(made.id)
    assert ids == sorted(set(ids))
    for number, event_id in enumerate(ids):
        place = log.place(event_id)
        if number + 1 >= log.start:
            assert place == (number + 1, {"r": log[number].mark if number >= log.start else place[1]["r"]})
        else:
            assert place is None


def test_a_full_memory_forgets_the_oldest() -> None:
    kept = dict.fromkeys(range(9))
    trim(kept, most=8)
    assert list(kept) == list(range(2, 9))


def test_marks_of_runs_that_ended_are_kept_for_a_while_and_those_of_others_for_good() -> None:
    progress = Progress(ended_most=8)
    progress.begin("long", 1)
    progress.reach("long", Mark(1, 5))
    for number in range(100):
        progress.begin(str(number), 1)
        progress.reach(str(number), Mark(1, number))
        progress.end(str(number), 1)
    assert progress.mark("long") == Mark(1, 5) and progress.under_way("long") == 1
    assert progress.mark("0") is None and progress.under_way("0") is None
    assert progress.mark("99") == Mark(1, 99) and progress.under_way("99") == 1
    assert len(progress) <= 9


def test_a_run_that_begins_anew_is_remembered_like_any_other() -> None:
    progress = Progress(ended_most=4)
    progress.reach("r", Mark(1, 7))
    progress.end("r", 1)
    progress.reach("r", Mark(1, 8))  # late
    progress.begin("r", 2)
    for number in range(20):
        progress.end(str(number), 1)
    assert progress.mark("r") == Mark(1, 8) and progress.under_way("r") == 2
    progress.end("r", 2)
    assert progress.mark("r") == Mark(2, 0)


def test_of_one_task_everything_is_remembered() -> None:
    progress = Progress(ended_most=None)
    for number in range(30_000):
        progress.reach(str(number), Mark(1, 1))
        progress.end(str(number), 1)
    assert len(progress) == 30_000
