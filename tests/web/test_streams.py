"""Event streams: order, resuming without gap or repeat, slow and many followers, faults of feed and master."""

from __future__ import annotations

import gc
import random
from http.client import HTTPException
from typing import Any

import gevent
import pytest

from tests.support.fake_web_master import FakeWebMaster
from tests.support.web import EventReader, Http, SeenEvent, is_final, webserver_for, written
from tests.web.conftest import Stack, request
from webserver import channel, server, stream
from webserver.app import Webserver

MIB = 1024 * 1024


def kinds(events: list[SeenEvent]) -> list[str]:
    return [event.json.get("state", event.kind) if event.kind in ("task", "run") else event.kind for event in events]


def ids(events: list[SeenEvent]) -> list[int]:
    return [int(event.id or 0) for event in events]


def everything(fake: FakeWebMaster, task: dict[str, Any]) -> dict[tuple[str, int], bytes]:
    """What the task's runs wrote and was kept."""
    own = {run["id"] for run in fake.runs_of(task)}
    kept = {
        key: b"".join(piece for _, piece in output.pieces if isinstance(piece, bytes))
        for key, output in fake.output.items()
        if key[0] in own
    }
    return {key: content for key, content in kept.items() if content}


def assert_in_order(events: list[SeenEvent]) -> None:
    """A run is told to be under way before its output, its output before its end, the runs' ends before the task's."""
    state: dict[str, str] = {}
    task = ""
    for event in events:
        told = event.json
        if event.kind == "reset":
            state, task = {}, ""
        elif event.kind == "task":
            task = told["state"]
            if task == "succeeded":
                assert set(state.values()) == {"succeeded"}, state
        elif event.kind == "run":
            state[told["id"]] = told["state"]
        else:
            assert state.get(told["run_id"]) == "running", (state, told)
            assert task != "succeeded"


def follow(http: Http, task: dict[str, Any], *, last_id: str | None = None) -> EventReader:
    return http.events(f"tasks/{task['id']}/events", last_id=last_id)


# -- order -------------------------------------------------------------------------------------------------------------


def test_a_stream_opened_before_the_start_brings_everything(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task(runs=2)
    reader = follow(http, task)
    assert reader.response.headers["Content-Type"] == "text/event-stream"
    assert reader.response.headers["Cache-Control"] == "no-cache, no-store"
    assert kinds([reader.next() for _ in range(3)]) == ["waiting", "ready", "ready"]
    for run in fake.runs_of(task):
        fake.begin(run)
        fake.write(run, b"out\xff")
        fake.write(run, b"err", stream=2)
        fake.write(run, 100)
        fake.write(run, b"end")
        fake.end(run)
    reader.until(is_final)
    assert_in_order(reader.seen)
    assert written(reader.seen) == everything(fake, task)
    live = ids(reader.seen)[2:]
    assert live == sorted(set(live))
    streams = {(event.json["stream"], event.json["offset"]) for event in reader.seen if event.kind == "output"}
    assert {("stderr", 4), ("stdout", 107)} <= streams
    reader.close()


def test_what_is_over_is_told_in_the_same_order(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task(runs=3)
    for run in fake.runs_of(task):
        fake.begin(run)
        fake.write(run, b"x" * 700_000)
        fake.end(run)
    reader = follow(http, task)
    events = reader.until(is_final)
    assert_in_order(events)
    assert written(events) == everything(fake, task)
    assert ids(events)[:-1] == [0] * (len(events) - 1) and ids(events)[-1] > 0
    reader.close()


def test_the_end_of_a_task_is_told_last_also_when_its_rows_come_late(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task(runs=20)
    reader = follow(http, task)
    reader.until(lambda event: len(reader.seen) == 21)
    for run in fake.runs_of(task):  # all of it happens before the feed says anything
        run.update(state="running", started_at_ms=1_700_000_001_000)
        fake.write(run, b"hello", tell=False)
    tell, fake.tell = fake.tell, lambda *args, **more: None  # type: ignore[method-assign]
    for run in fake.runs_of(task):
        fake.end(run)
    fake.tell = tell  # type: ignore[method-assign]
    fake.tell("task", task["id"])
    reader.until(is_final)
    assert_in_order(reader.seen)
    assert written(reader.seen) == everything(fake, task)
    reader.close()


def test_a_repeated_run_is_told_by_attempts(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    [run] = fake.runs_of(task)
    reader = follow(http, task)
    reader.until(lambda event: event.kind == "run")
    for number in range(3):
        fake.begin(run)
        fake.write(run, b"%d" % number * (3 - number))
        fake.end(run, state="failed", exit_code=1)
        fake.retry(run)
    fake.begin(run)
    fake.write(run, b"last")
    fake.end(run)
    reader.until(is_final)
    assert list(written(reader.seen).values()) == [b"000", b"11", b"2", b"last"]
    reader.close()


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_client_goes_on_behind_any_event_without_gap_or_repeat(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task(runs=2)
    reader = follow(http, task)
    reader.until(lambda event: len(reader.seen) == 3)
    for run in fake.runs_of(task):
        fake.begin(run)
        for number in range(6):
            fake.write(run, b"%d" % number * 10, stream=1 + number % 2)
        fake.end(run)
    reader.until(is_final)
    reader.close()
    for number, event in enumerate(reader.seen):
        if event.id == "0":
            continue
        again = follow(http, task, last_id=event.id)
        if number + 1 < len(reader.seen):
            again.until(is_final)
        assert again.seen == reader.seen[number + 1 :]
        again.close()


def test_whoever_broke_off_within_a_snapshot_gets_it_anew(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    [run] = fake.runs_of(task)
    fake.begin(run)
    fake.write(run, b"hello")
    reader = follow(http, task)
    reader.next()
    assert reader.last_id == "0"
    reader.close()
    again = follow(http, task, last_id="0")
    fake.end(run)
    events = again.until(is_final)
    assert events[0].kind == "reset"
    assert_in_order(events)
    assert written(events) == everything(fake, task)
    again.close()


@pytest.mark.parametrize("last_id", ["1", "999999999999", "9" * 30, "nonsense", "-5", "1.5", "٣"])
def test_an_id_that_cannot_be_resumed_is_answered_with_reset(http: Http, fake: FakeWebMaster, last_id: str) -> None:
    task = fake.task()
    fake.begin(fake.runs_of(task)[0])
    fake.write(fake.runs_of(task)[0], b"all of it")
    reader = follow(http, task, last_id=last_id.encode().decode("latin-1"))
    events = reader.until(lambda event: event.kind == "output")
    assert kinds(events)[:2] == ["reset", "running"]
    assert written(events) == everything(fake, task)
    reader.close()


def test_after_a_restart_of_the_webserver_all_is_told_anew(fake: FakeWebMaster) -> None:
    task = fake.task()
    [run] = fake.runs_of(task)
    fake.begin(run)
    fake.write(run, b"before")
    with webserver_for(fake) as web:
        reader = follow(Http(web.address), task)
        reader.until(lambda event: event.kind == "output")
        last_id = reader.last_id
        reader.close()
    with webserver_for(fake) as web:
        reader = follow(Http(web.address), task, last_id=last_id)
        fake.end(run)
        events = reader.until(is_final)
        assert events[0].kind == "reset"
        assert written(events) == everything(fake, task)
        reader.close()


def test_a_restart_of_the_master_is_not_noticed(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    [run] = fake.runs_of(task)
    reader = follow(http, task)
    reader.until(lambda event: event.kind == "run")
    fake.begin(run)
    fake.write(run, b"one")
    reader.until(lambda event: event.kind == "output")
    fake.restart()
    fake.write(run, b"two")
    fake.end(run)
    reader.until(is_final)
    assert "reset" not in kinds(reader.seen)
    assert written(reader.seen) == everything(fake, task)
    reader.close()


def test_rows_of_the_feed_that_were_missed_reset_every_stream(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    [run] = fake.runs_of(task)
    reader, other = follow(http, task), http.events("events")
    reader.until(lambda event: event.kind == "run")
    fake.begin(run)
    fake.write(run, b"one")
    reader.until(lambda event: event.kind == "output")
    fake.write(run, b"two", tell=False)
    fake.forget_feed()
    reader.until(lambda event: event.kind == "reset")
    fake.end(run)
    events = reader.until(is_final)
    assert_in_order(events)
    assert written(events) == everything(fake, task)
    other.until(lambda event: event.kind == "reset")
    reader.close()
    other.close()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_and_wherever_it_breaks_nothing_is_lost_or_told_twice(
    http: Http, fake: FakeWebMaster, seed: int
) -> None:
    chance = random.Random(seed)
    task = fake.task(runs=4)
    seen: list[SeenEvent] = []

    def act() -> None:
        left = {run["id"]: run for run in fake.runs_of(task)}
        while left:
            run = chance.choice(list(left.values()))
            if run["state"] == "ready":
                fake.begin(run)
            elif chance.random() < 0.1:
                fake.end(run)
                del left[run["id"]]
            elif chance.random() < 0.05:
                fake.end(run, state="failed", exit_code=1)
                fake.retry(run)
            elif chance.random() < 0.1:
                fake.write(run, chance.randrange(1, 50))
            else:
                fake.write(run, chance.randbytes(chance.randrange(1, 4000)), stream=chance.choice([1, 2]))
            if chance.random() < 0.01:
                fake.restart()
            if chance.random() < 0.3:
                gevent.sleep(chance.random() * 0.02)

    acting = gevent.spawn(act)
    last_id = None
    while not (seen and is_final(seen[-1])):
        reader = follow(http, task, last_id=last_id)
        left = chance.randrange(3, 12)
        whole_snapshot = chance.random() < 0.7
        while left > 0 or (whole_snapshot and reader.last_id == "0"):
            event = reader.next()
            seen = [] if event.kind == "reset" else [*seen, event]
            left -= 1
            if is_final(event):
                break
        last_id = reader.last_id
        reader.close()
    acting.get()
    assert_in_order(seen)
    found = written(seen)
    for (run_id, attempt), content in everything(fake, task).items():
        # A snapshot tells of a run's newest attempt only.
        if attempt == fake.runs[run_id]["attempt"] or (run_id, attempt) in found:
            assert found[run_id, attempt] == content


# -- many and slow -----------------------------------------------------------------------------------------------------


def test_200_followers_cost_the_master_what_one_costs(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task(runs=2)
    readers = [follow(http, task) for _ in range(200)]
    for reader in readers:
        reader.until(lambda event, reader=reader: len(reader.seen) == 3)
    before = len(fake.calls)
    for run in fake.runs_of(task):
        fake.begin(run)
        for number in range(10):
            fake.write(run, b"line %d\n" % number)
        fake.end(run)
    for reader in readers:
        reader.until(is_final)
        assert_in_order(reader.seen)
        assert written(reader.seen) == everything(fake, task)
    assert len(fake.calls) - before < 80
    metrics = http.get("/metrics").body
    assert b"muster_web_streams 200.0" in metrics
    for reader in readers:
        reader.close()


def test_a_slow_follower_delays_nobody_and_still_gets_everything(
    fake: FakeWebMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LOG_BYTES", 8 * MIB)
    with webserver_for(fake) as web:
        http = Http(web.address)
        task = fake.task()
        [run] = fake.runs_of(task)
        slow, quick = follow(http, task), follow(http, task)
        slow.until(lambda event: event.kind == "run")
        quick.until(lambda event: event.kind == "run")
        fake.begin(run)
        for number in range(40):
            fake.write(run, bytes([number]) * (MIB // 2))
            quick.until(lambda event: event.kind == "output")
        fake.end(run)
        quick.until(is_final)
        assert written(quick.seen) == everything(fake, task)
        slow.until(is_final)
        assert written(slow.seen) == everything(fake, task)
        assert_in_order(slow.seen)
        assert web.services.streams.fell_behind > 0
        assert b"muster_web_streams_behind" in http.get("/metrics").body
        logs = [each._log._bytes for each in web.services.streams._channels.values()]
        assert sum(logs) < 4 * MIB
        slow.close()
        quick.close()


def test_a_follower_that_takes_nothing_is_dropped(fake: FakeWebMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENCE_S", 0.3)
    with webserver_for(fake) as web:
        task = fake.task()
        [run] = fake.runs_of(task)
        reader = follow(Http(web.address), task)
        reader.next()
        fake.begin(run)
        for _ in range(30):
            fake.write(run, b"x" * MIB)
        while web.services.streams.followers:
            gevent.sleep(0.05)
        with pytest.raises((EOFError, OSError, HTTPException)):
            reader.until(is_final)
        reader.close()


def test_a_follower_that_has_gone_is_forgotten(http: Http, web: Webserver, fake: FakeWebMaster) -> None:
    task = fake.task()
    reader = follow(http, task)
    reader.next()
    reader.close()
    while web.services.streams.followers:
        fake.tell("task", task["id"])
        task["name"] += "x"
        gevent.sleep(0.02)
    gc.collect()


def test_streams_nobody_comes_back_to_are_forgotten_and_the_feed_is_left_alone(
    fake: FakeWebMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "IDLE_S", 0.0)
    with webserver_for(fake) as web:
        http = Http(web.address)
        task = fake.task()
        reader = follow(http, task)
        reader.next()
        reader.close()
        while web.services.streams._channels:
            fake.tell("task", task["id"])
            task["name"] += "x"
            gevent.sleep(0.02)
        gevent.sleep(0.05)
        polls = fake.count("feed")
        fake.tell("task", task["id"])
        gevent.sleep(0.05)
        assert fake.count("feed") == polls
        reader = follow(http, task)
        fake.begin(fake.runs_of(task)[0])
        reader.until(lambda event: event.kind == "run" and event.json["state"] == "running")
        reader.close()


def test_many_runs_at_once_are_listed_rather_than_asked_for_one_by_one(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task(runs=600)
    reader = follow(http, task)
    reader.until(lambda event: len(reader.seen) == 601)
    for run in fake.runs_of(task):
        fake.begin(run)
        fake.end(run)
    reader.until(is_final)
    assert_in_order([event for event in reader.seen if event.kind != "output"])
    assert fake.count("get_run") < 200
    reader.close()


# -- everything --------------------------------------------------------------------------------------------------------


def test_all_tasks_can_be_followed_with_or_without_output(http: Http, fake: FakeWebMaster) -> None:
    with_output, without = http.events("events"), http.events("events?output=false")
    first, second = fake.task(), fake.task()
    for task in (first, second):
        [run] = fake.runs_of(task)
        fake.begin(run)
        fake.write(run, b"hello")
        fake.end(run)
    for reader in (with_output, without):
        reader.until(lambda event: is_final(event) and event.json["id"] == second["id"])
        assert {event.json["id"] for event in reader.seen if event.kind == "task"} == {first["id"], second["id"]}
    assert written(with_output.seen) == {**everything(fake, first), **everything(fake, second)}
    assert "output" not in {event.kind for event in without.seen}
    last = with_output.seen[-2]
    again = http.events("events", last_id=last.id)
    assert again.next() == with_output.seen[-1]
    for reader in (with_output, without, again):
        reader.close()


def test_whoever_has_an_answer_misses_nothing_from_then_on(http: Http, fake: FakeWebMaster) -> None:
    with fake.holding("feed") as arrived:
        opening = gevent.spawn(http.events, "events")
        arrived.wait()
        opening.join(timeout=0.3)
        assert not opening.ready()
    readers = [opening.get()]
    for _ in range(10):
        task = fake.task()
        for reader in readers:
            reader.until(lambda event, task=task: event.kind == "task" and event.json["id"] == task["id"])
        readers.append(http.events("events"))
    again = http.events("events", last_id=readers[0].last_id)  # is answered at once, although there is nothing to tell
    for reader in (*readers, again):
        reader.close()


@pytest.mark.parametrize("query", ["", "?output=false"])
def test_what_is_remembered_for_everything_does_not_grow_with_the_runs_there_were(
    fake: FakeWebMaster, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(channel, "_ENDED_MOST", 40)
    monkeypatch.setattr(stream, "LOG_BYTES", 0)  # the least, so that much goes out of the log
    with webserver_for(fake) as web:
        reader = Http(web.address).events(f"events{query}")
        long = fake.task()
        fake.begin(fake.runs_of(long)[0])
        fake.write(fake.runs_of(long)[0], b"begin")
        tasks = [fake.task(runs=100) for _ in range(3)]
        for task in tasks:
            for run in fake.runs_of(task):
                fake.begin(run)
                fake.write(run, b"hello")
                fake.end(run)
            reader.until(lambda event, task=task: is_final(event) and event.json["id"] == task["id"])
        late = fake.runs_of(tasks[-1])[-1]
        fake.write(late, b" again")
        fake.write(fake.runs_of(long)[0], b"end")
        fake.end(fake.runs_of(long)[0])
        reader.until(lambda event: is_final(event) and event.json["id"] == long["id"])
        [everything_told] = web.services.streams._channels.values()
        assert everything_told._log.start > 0 and not everything_told._log._base_marks
        assert all(entry.run_id is None for entry in everything_told._log._entries)
        progress = everything_told._progress
        assert len(progress) <= 41 and not progress._under_way
        if not query:
            wanted = everything(fake, long) | {
                key: said for task in tasks for key, said in everything(fake, task).items()
            }
            assert written(reader.seen) == wanted
        ends = [event for event in reader.seen if event.kind == "run" and event.json["state"] == "succeeded"]
        assert len(ends) == 301
        reader.close()


def test_a_bad_stream_query_is_refused(http: Http, fake: FakeWebMaster) -> None:
    http.get("events?output=maybe").refused(422, "invalid_request", "output")
    http.get("events?since=now").refused(422, "invalid_request", "since")


# -- before the real master --------------------------------------------------------------------------------------------


def test_a_real_task_is_told_from_its_first_byte_to_its_end(stack: Stack) -> None:
    task = stack.http.post("tasks", request()).json
    reader = follow(stack.http, task)
    reader.until(lambda event: event.kind == "run")
    run = stack.one.take()
    for number in range(5):
        stack.one.write(run, b"line %d\n" % number, stream=1 + number % 2)
    stack.one.skip(run, 10)
    stack.one.write(run, b"end")
    reader.until(lambda event: event.kind == "output")
    stack.one.end(run, gaps=[(35, 10)])
    reader.until(is_final)
    assert_in_order(reader.seen)
    assert written(reader.seen) == {(run.run_id, 1): run.sent}
    reader.close()
    for event in reader.seen[2:-1]:
        again = follow(stack.http, task, last_id=event.id)
        again.until(is_final)
        assert again.seen == reader.seen[reader.seen.index(event) + 1 :]
        again.close()


def test_a_real_task_that_is_over_is_told_whole(stack: Stack) -> None:
    task = stack.http.post("tasks", request(targets=["one", "two"])).json
    for hand in (stack.one, stack.two):
        run = hand.take()
        hand.write(run, hand.name.encode() * 100_000)
        hand.end(run)
    reader = follow(stack.http, task)
    events = reader.until(is_final)
    assert_in_order(events)
    assert sorted(written(events).values()) == [b"one" * 100_000, b"two" * 100_000]
    reader.close()
