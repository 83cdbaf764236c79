"""Tasks: what is stored comes back, lists filter and page, versions and keys are guarded."""

from __future__ import annotations

import itertools
import random

import pytest

from common.errors import Conflict, InvalidRequest, VersionConflict
from common.ids import uuid7
from common.model import OnStop, Reason, Task, TaskState, evolve
from common.wire import pack
from master.store import statements
from master.store.base import Store, TaskFilter
from tests.store.making import NOW, add_addressed, add_free, alter, make_run, make_spec, make_task

EVERY_FIELD = Task(
    id="0190-every-field",
    name="Grüße\n2",
    seq=41,
    state=TaskState.CANCELLED,
    counts={"ready": 1, "failed": 2, "cancelled": 3},
    total=6,
    priority=4294967295,
    parallel=7,
    fail_count=3,
    fail_rate=0.25,
    on_stop=OnStop.KILL,
    queue="slow",
    count=6,
    lost_after_s=0.5,
    paused=True,
    stopped=True,
    cancel_requested=True,
    reason=Reason(code="fail_count", detail="too many", run_id="r", args={"failed": 3, "limit": 0.5, "agent": "a"}),
    offered=False,
    created_at_ms=1,
    started_at_ms=2,
    ended_at_ms=3,
    submitted_by="somebody",
    version=9,
)


def test_every_field_of_a_task_comes_back(store: Store) -> None:
    store.write(lambda tx: tx.add_task(EVERY_FIELD, make_spec(), []))
    assert store.read(lambda tx: tx.get_task(EVERY_FIELD.id)) == EVERY_FIELD
    plain = make_task(42, 1)
    store.write(lambda tx: tx.add_task(plain, make_spec(), [make_run(plain, "a")]))
    assert store.read(lambda tx: tx.get_task(plain.id)) == plain


def test_every_field_of_a_task_has_its_column() -> None:
    fields = set(Task.__struct_fields__) - {"counts"}
    assert fields == set(statements.TASK_COLUMNS) - set(statements.COUNT_COLUMNS) - {"scope"}


def test_a_saved_task_comes_back_with_what_may_change(store: Store) -> None:
    store.write(lambda tx: tx.add_task(evolve(EVERY_FIELD, reason=None), make_spec(), []))
    after = evolve(
        EVERY_FIELD, state=TaskState.RUNNING, counts={"running": 6}, paused=False, stopped=False,
        cancel_requested=False, reason=Reason(code="cancelled", detail="by hand"), offered=True, started_at_ms=20,
        ended_at_ms=None, version=10,
    )  # fmt: skip
    store.write(lambda tx: tx.save_task(after, expect=9))
    assert store.read(lambda tx: tx.get_task(EVERY_FIELD.id)) == after


def test_what_is_not_there_is_none(store: Store) -> None:
    def look(tx: object) -> list[object]:
        return [tx.get_task("x"), tx.get_spec("x"), tx.get_spec_raw("x"), tx.task_candidates("x"),
                tx.task_by_idempotency_key("x"), tx.get_run("x"), tx.get_agent("x"), tx.blob_size("x"),
                tx.get_join_token("x"), tx.next_deadline(), tx.claimable("x", "a")]  # fmt: skip

    assert store.read(look) == [None] * 11
    assert store.write(look) == [None] * 11


def test_the_spec_comes_back_decoded_and_raw(store: Store) -> None:
    task = store.write(lambda tx: add_addressed(tx, ["a"]))
    assert store.read(lambda tx: tx.get_spec(task.id)) == make_spec()
    assert store.read(lambda tx: tx.get_spec_raw(task.id)) == pack(make_spec())


def test_candidates_come_back_sorted_and_only_for_a_set(store: Store) -> None:
    fixed = store.write(lambda tx: add_free(tx, 2, candidates=["c", "a", "b"]))
    free = store.write(lambda tx: add_free(tx, 2))
    addressed = store.write(lambda tx: add_addressed(tx, ["a"]))
    found = store.read(lambda tx: [tx.task_candidates(task.id) for task in (fixed, free, addressed)])
    assert found == [["a", "b", "c"], None, None]


def test_a_stale_save_raises_and_stores_nothing(store: Store) -> None:
    task = store.write(lambda tx: add_addressed(tx, ["a"]))
    store.write(lambda tx: alter(tx, task.id, paused=True))
    stale = evolve(task, cancel_requested=True, version=2)
    with pytest.raises(VersionConflict):
        store.write(lambda tx: tx.save_task(stale, expect=task.version))
    with pytest.raises(VersionConflict):
        store.write(lambda tx: tx.save_task(evolve(stale, id="unknown"), expect=1))
    stored = store.read(lambda tx: tx.get_task(task.id))
    assert stored is not None and stored.paused and not stored.cancel_requested


def test_an_idempotency_key_is_kept_once(store: Store) -> None:
    def add(key: str | None) -> Task:
        task = store.write(lambda tx: make_task(tx.next_seq(), 1))
        store.write(
            lambda tx: tx.add_task(
                task, make_spec(), [make_run(task, "a")], idempotency_key=key, body_sha256=f"body of {task.id}"
            )
        )
        return task

    add(None)
    add(None)
    first = add("key")
    with pytest.raises(Conflict):
        add("key")
    assert store.read(lambda tx: tx.task_by_idempotency_key("key")) == (first.id, f"body of {first.id}")
    assert store.read(lambda tx: len(tx.list_tasks(TaskFilter(), limit=10, cursor=None).items)) == 3
    ids = store.read(lambda tx: [task.id for task in tx.list_tasks(TaskFilter(), limit=9, cursor=None).items])
    missing = [f"task {task_id}: its script is not stored" for task_id in ids]
    assert sorted(store.read(lambda tx: tx.findings())) == sorted(missing)


def test_the_same_task_twice_is_a_conflict(store: Store) -> None:
    task = store.write(lambda tx: add_addressed(tx, ["a"]))
    with pytest.raises(Conflict):
        store.write(lambda tx: tx.add_task(evolve(task, seq=999), make_spec(), []))
    with pytest.raises(Conflict):
        store.write(lambda tx: tx.add_task(evolve(task, id=uuid7()), make_spec(), []))
    run = store.read(lambda tx: tx.runs_in(task.id, set(task.counts)))[0]
    other = make_task(1000, 1)
    with pytest.raises(Conflict):
        store.write(lambda tx: tx.add_task(other, make_spec(), [make_run(other, "b", id=run.id)]))
    assert store.read(lambda tx: tx.get_task(other.id)) is None


def test_submission_numbers_never_come_twice(store: Store) -> None:
    assert store.write(lambda tx: [tx.next_seq(), tx.next_seq()]) == [1, 2]
    assert store.write(lambda tx: tx.next_seq()) == 3


def test_tasks_come_newest_first_and_pages_stay_right_while_tasks_come_in(store: Store) -> None:
    ids = [store.write(lambda tx: add_addressed(tx, ["a"]).id) for _ in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = store.read(lambda tx, at=cursor: tx.list_tasks(TaskFilter(), limit=3, cursor=at))
        seen += [task.id for task in page.items]
        store.write(lambda tx: add_addressed(tx, ["a"]))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


def test_the_last_page_has_no_cursor_even_when_it_is_full(store: Store) -> None:
    for _ in range(4):
        store.write(lambda tx: add_addressed(tx, ["a"]))
    first = store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=2, cursor=None))
    second = store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=2, cursor=first.next_cursor))
    assert (len(first.items), len(second.items), second.next_cursor) == (2, 2, None)


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "", "9" * 30, "١"])
def test_what_is_no_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=2, cursor=cursor))
    with pytest.raises(InvalidRequest, match="cursor"):
        store.read(lambda tx: tx.list_runs("x", states=None, limit=2, cursor=cursor))


def names(store: Store, where: TaskFilter) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = store.read(lambda tx, at=cursor: tx.list_tasks(where, limit=2, cursor=at))
        found += [task.name for task in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


def test_lists_filter_by_state_agent_name_and_time(store: Store) -> None:
    store.write(lambda tx: add_addressed(tx, ["a", "b"], name="Backup ÄÖ"))
    paused = store.write(lambda tx: add_addressed(tx, ["b"], name="backup 2"))
    store.write(lambda tx: add_addressed(tx, ["c"], name="other %_"))
    store.write(lambda tx: add_free(tx, 1, name="free"))
    counts = {"succeeded": 1}
    done = store.write(lambda tx: add_addressed(tx, ["a"], name="done", counts=counts, state=TaskState.SUCCEEDED))
    assert names(store, TaskFilter()) == ["done", "free", "other %_", "backup 2", "Backup ÄÖ"]
    assert names(store, TaskFilter(name="BACKUP")) == ["backup 2", "Backup ÄÖ"]
    assert names(store, TaskFilter(name="äö")) == ["Backup ÄÖ"]
    assert names(store, TaskFilter(name="%")) == ["other %_"]
    assert names(store, TaskFilter(agent_id="b")) == ["backup 2", "Backup ÄÖ"]
    assert names(store, TaskFilter(agent_id="b", name="ä")) == ["Backup ÄÖ"]
    assert names(store, TaskFilter(agent_id="unknown")) == []
    assert names(store, TaskFilter(since_ms=NOW.wall_ms + 3)) == ["done", "free", "other %_"]
    assert names(store, TaskFilter(since_ms=NOW.wall_ms + 99)) == []
    assert names(store, TaskFilter(id_prefix=paused.id)) == ["backup 2"]
    assert len(names(store, TaskFilter(id_prefix=paused.id[:6]))) == 5
    both = frozenset({TaskState.WAITING, TaskState.SUCCEEDED})
    assert names(store, TaskFilter(states=both)) == ["done", "free", "other %_", "backup 2", "Backup ÄÖ"]
    assert names(store, TaskFilter(states=frozenset({TaskState.SUCCEEDED}))) == ["done"]
    assert names(store, TaskFilter(states=both, agent_id="a")) == ["done", "Backup ÄÖ"]
    assert names(store, TaskFilter(states=frozenset(), agent_id="a")) == []
    assert done.seq == 5


def test_ids_are_found_by_prefix(store: Store) -> None:
    for task_id in ("abc1", "abc2", "abd", "ab"):
        store.write(lambda tx, i=task_id: tx.add_task(make_task(tx.next_seq(), 0, id=i), make_spec(), []))
    assert store.read(lambda tx: tx.find_task_ids("abc")) == ["abc1", "abc2"]
    assert store.read(lambda tx: tx.find_task_ids("ab", limit=3)) == ["ab", "abc1", "abc2"]
    assert store.read(lambda tx: tx.find_task_ids("abc1")) == ["abc1"]
    assert store.read(lambda tx: tx.find_task_ids("b")) == []


def test_queue_age_counts_ready_runs_only(store: Store) -> None:
    first = store.write(lambda tx: add_addressed(tx, ["a"], queue="x"))
    store.write(lambda tx: add_addressed(tx, ["a"], queue="x"))
    second = store.write(lambda tx: add_free(tx, 1, queue="y"))
    assert store.read(lambda tx: tx.oldest_ready_ms()) == {"x": first.created_at_ms, "y": second.created_at_ms}
    store.write(lambda tx: alter(tx, first.id, counts={"running": 1}))
    found = store.read(lambda tx: tx.oldest_ready_ms())
    assert found == {"x": first.created_at_ms + 1, "y": second.created_at_ms}


def _pages(store: Store, where: TaskFilter, *, limit: int) -> list[list[str]]:
    """All pages of a list, from the newest to the oldest; then back again, which must show the same."""
    found: list[list[str]] = []
    page = store.read(lambda tx: tx.list_tasks(where, limit=limit, cursor=None))
    assert page.previous_cursor is None
    while True:
        found.append([task.id for task in page.items])
        if page.next_cursor is None:
            break
        page = store.read(lambda tx, at=page.next_cursor: tx.list_tasks(where, limit=limit, cursor=at))
    back = [found[-1]]
    while page.previous_cursor is not None:
        page = store.read(lambda tx, at=page.previous_cursor: tx.list_tasks(where, limit=limit, cursor=at))
        back.append([task.id for task in page.items])
    assert back[::-1] == found
    return found


def test_a_list_can_be_paged_back(store: Store) -> None:
    ids = [store.write(lambda tx: add_addressed(tx, ["a"]).id) for _ in range(9)][::-1]
    assert _pages(store, TaskFilter(), limit=3) == [ids[:3], ids[3:6], ids[6:]]
    assert _pages(store, TaskFilter(), limit=4) == [ids[:4], ids[4:8], ids[8:]]
    assert _pages(store, TaskFilter(agent_id="a", name="TASK"), limit=5) == [ids[:5], ids[5:]]
    assert _pages(store, TaskFilter(agent_id="b"), limit=5) == [[]]


def test_a_page_before_one_near_the_newest_is_the_first_page(store: Store) -> None:
    ids = [store.write(lambda tx: add_addressed(tx, ["a"]).id) for _ in range(5)][::-1]
    page = store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=3, cursor="+4"))
    assert [task.id for task in page.items] == ids[:3]
    assert (page.next_cursor, page.previous_cursor) == ("3", None)


@pytest.mark.parametrize("cursor", ["+", "++1", "-1", "+x", "+1234567890123456789"])
def test_a_made_up_cursor_of_either_direction_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=3, cursor=cursor))


def test_times_bound_a_list_even_where_the_clock_went_back(store: Store) -> None:
    times = [10, 20, 50, 30, 40, 60]
    ids = [store.write(lambda tx, at=at: add_addressed(tx, ["a"], created_at_ms=at).id) for at in times]

    def found(**where: object) -> list[int]:
        page = store.read(lambda tx: tx.list_tasks(TaskFilter(**where), limit=9, cursor=None))
        return [times[ids.index(task.id)] for task in page.items]

    assert found(since_ms=30) == [60, 40, 30, 50]
    assert found(until_ms=50) == [40, 30, 20, 10]
    assert found(since_ms=20, until_ms=50) == [40, 30, 20]
    assert found(since_ms=61) == found(until_ms=10) == found(since_ms=40, until_ms=40) == []


def test_filters_combine_whichever_index_leads(store: Store) -> None:
    """Each combination against the same asked of every task."""
    rng = random.Random(7)
    states, names, agents = list(TaskState), ["alpha", "Beta", "GÄMMA"], ["a", "b", "c"]
    stored: list[tuple[Task, list[str]]] = []
    for number in range(60):
        chosen = rng.sample(agents, rng.randint(1, 3))
        changes = {"name": f"{rng.choice(names)} {number}", "state": rng.choice(states)}
        stored.append((store.write(lambda tx, on=chosen, more=changes: add_addressed(tx, on, **more)), chosen))

    def fits(where: TaskFilter, task: Task, on: list[str]) -> bool:
        return (
            (where.states is None or task.state in where.states)
            and (where.agent_id is None or where.agent_id in on)
            and (where.name is None or where.name.casefold() in task.name.casefold())
            and (where.since_ms is None or task.created_at_ms >= where.since_ms)
            and (where.until_ms is None or task.created_at_ms < where.until_ms)
        )

    chosen_states = [None, frozenset(states[:1]), frozenset(states[1:4])]
    bounds = [(None, None), (stored[10][0].created_at_ms, stored[50][0].created_at_ms)]
    combined = itertools.product(chosen_states, [None, *agents[:2], "nobody"], [None, "beta", "gämma", "x"], bounds)
    for among, agent_id, name, (since, until) in combined:
        where = TaskFilter(states=among, agent_id=agent_id, name=name, since_ms=since, until_ms=until)
        wanted = [task.id for task, on in reversed(stored) if fits(where, task, on)]
        found = [task_id for page in _pages(store, where, limit=7) for task_id in page]
        assert found == wanted, where


@pytest.mark.parametrize("few", [0, 3, 10, 20, 45])
def test_filters_combine_among_many(store: Store, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr("master.store.lists._FEW", few)
    monkeypatch.setattr("master.store.lists._COUNTED", 50)
    test_filters_combine_whichever_index_leads(store)
