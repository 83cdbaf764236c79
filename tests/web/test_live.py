"""Event streams as pages use them: agents, single runs, and pages that follow from the place where they were made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from common.errors import TooLarge
from tests.support.fake_web_master import FakeWebMaster
from tests.support.web import EventReader, Http, SeenEvent, is_final, webserver_for, written
from tests.web.conftest import Stack, request
from webserver import channel, stream
from webserver.api import events
from webserver.app import Webserver


def follow_run(http: Http, run: dict[str, Any], *, last_id: str | None = None, query: str = "") -> EventReader:
    return http.events(f"runs/{run['id']}/events{query}", last_id=last_id)


def run_is_final(event: SeenEvent) -> bool:
    return event.kind == "run" and event.json["state"] in ("succeeded", "failed")


def of_run(fake: FakeWebMaster, run: dict[str, Any]) -> dict[tuple[str, int], bytes]:
    kept = {
        key: b"".join(piece for _, piece in output.pieces if isinstance(piece, bytes))
        for key, output in fake.output.items()
        if key[0] == run["id"]
    }
    return {key: content for key, content in kept.items() if content}


def assert_run_in_order(events: list[SeenEvent], run: dict[str, Any]) -> None:
    """Only this run; under way before its output, its output before its end."""
    state = ""
    for event in events:
        if event.kind == "reset":
            state = ""
        elif event.kind == "run":
            assert event.json["id"] == run["id"]
            state = event.json["state"]
        else:
            assert event.kind == "output" and event.json["run_id"] == run["id"]
            assert state == "running"


# -- agents ------------------------------------------------------------------------------------------------------------


def test_agents_are_told_where_everything_is_told_and_only_there(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    [run] = fake.runs_of(task)
    readers = [http.events("events"), http.events("events?output=false")]
    others = [http.events(f"tasks/{task['id']}/events"), follow_run(http, run)]
    agent = fake.agent(labels={"role": "db"})
    for reader in readers:
        told = reader.until(lambda event: event.kind == "agent")[-1].json
        assert (told["id"], told["state"], told["labels"]) == (agent["id"], "online", {"role": "db"})
        assert told["last_seen_at"] == "2023-11-14T22:13:20.000Z"
    fake.change(agent, state="offline")
    fake.forget(agent)
    for reader in readers:
        reader.until(lambda event: event.kind == "agent" and event.json.get("forgotten"))
        assert reader.seen[-1].json == {"id": agent["id"], "forgotten": True}
    fake.begin(run)
    fake.end(run)
    others[0].until(is_final)
    others[1].until(run_is_final)
    assert all(event.kind in ("task", "run") for reader in others for event in reader.seen)
    for reader in (*readers, *others):
        reader.close()


def test_many_changes_of_agents_are_few_calls_and_few_events(http: Http, fake: FakeWebMaster) -> None:
    reader = http.events("events")
    agents = [fake.agent() for _ in range(250)]
    with fake.holding("feed"):
        for slots in range(5):
            for agent in agents:
                fake.change(agent, slots=10 + slots)
        gone = agents.pop()
        fake.forget(gone)
    latest: dict[str, Any] = {}
    while gone["id"] not in latest or any(latest[a["id"]].get("slots") != 14 for a in agents if a["id"] in latest):
        event = reader.next()
        latest[event.json["id"]] = event.json
    while len(latest) < 250:
        event = reader.next()
        latest[event.json["id"]] = event.json
    assert latest[gone["id"]] == {"id": gone["id"], "forgotten": True}
    assert {latest[agent["id"]]["slots"] for agent in agents} == {14}
    assert len(reader.seen) <= 1000
    assert fake.count("get_agent") < 50
    reader.close()


def test_agents_too_large_for_one_answer_are_asked_for_one_by_one(http: Http, fake: FakeWebMaster) -> None:
    reader = http.events("events")
    fake.fail("get_agents", *[TooLarge("too much")] * 50)
    with fake.holding("feed"):
        agents = [fake.agent() for _ in range(5)]
    reader.until(lambda event: {each.json["id"] for each in reader.seen} == {agent["id"] for agent in agents})
    reader.close()


def test_an_agent_row_without_a_name_and_rows_of_unknown_kinds_are_passed_over(http: Http, fake: FakeWebMaster) -> None:
    reader = http.events("events")
    fake.tell("agent", None)
    fake.tell("weather", None, "rain")
    agent = fake.agent()
    assert reader.next().json["id"] == agent["id"]
    reader.close()


def test_an_event_is_encoded_once_for_all_who_follow(
    http: Http, fake: FakeWebMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, encoded = channel._encode, []
    monkeypatch.setattr(channel, "_encode", lambda told: encoded.append(told["id"]) or encode(told))
    readers = [http.events("events") for _ in range(100)]
    agent = fake.agent()
    for reader in readers:
        assert reader.next().json["id"] == agent["id"]
    assert encoded == [agent["id"]]
    assert fake.count("get_agent") == 1
    for reader in readers:
        reader.close()


# -- one run -----------------------------------------------------------------------------------------------------------


def test_a_run_is_followed_from_its_first_byte_to_its_end(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task(runs=2)
    run, other = fake.runs_of(task)
    reader = follow_run(http, run)
    assert reader.next().json["state"] == "ready"
    for each in (other, run):
        fake.begin(each)
        fake.write(each, b"out\xff")
        fake.write(each, 100)
        fake.write(each, b"err", stream=2)
        fake.end(each)
    reader.until(run_is_final)
    assert_run_in_order(reader.seen, run)
    assert written(reader.seen) == of_run(fake, run)
    asked = {args[0] for name, args in fake.calls if name in ("read_output", "get_run")}
    assert asked == {run["id"]}
    assert not fake.count("list_runs") and not fake.count("get_task")
    for number, event in enumerate(reader.seen):
        if event.id != "0":
            again = follow_run(http, run, last_id=event.id)
            if number + 1 < len(reader.seen):
                again.until(run_is_final)
            assert again.seen == reader.seen[number + 1 :]
            again.close()
    reader.close()


def test_a_run_that_is_over_is_told_in_the_same_order(http: Http, fake: FakeWebMaster) -> None:
    [run] = fake.runs_of(fake.task())
    fake.begin(run)
    fake.write(run, b"x" * 700_000)
    fake.end(run)
    for query in ("", "?output=false"):
        reader = follow_run(http, run, query=query)
        events = reader.until(run_is_final)
        assert_run_in_order(events, run)
        assert written(events) == ({} if query else of_run(fake, run))
        assert [event.id for event in events[:-1]] == ["0"] * (len(events) - 1) and int(events[-1].id or 0) > 0
        reader.close()


def test_a_repeated_run_goes_on_in_the_same_stream(http: Http, fake: FakeWebMaster) -> None:
    [run] = fake.runs_of(fake.task())
    reader = follow_run(http, run)
    reader.next()
    for number in range(3):
        fake.begin(run)
        fake.write(run, b"%d" % number * (3 - number))
        fake.end(run, state="failed", exit_code=1)
        fake.retry(run)
    fake.begin(run)
    fake.write(run, b"last")
    fake.end(run)
    reader.until(lambda event: event.kind == "run" and event.json["state"] == "succeeded")
    assert list(written(reader.seen).values()) == [b"000", b"11", b"2", b"last"]
    reader.close()


def test_a_run_that_is_not_there_cannot_be_followed(http: Http) -> None:
    http.get("runs/nosuch/events").refused(404, "not_found")


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_a_run_nothing_is_lost_or_told_twice(http: Http, fake: FakeWebMaster, seed: int) -> None:
    chance = random.Random(seed)
    runs = fake.runs_of(fake.task(runs=3))
    run = runs[0]
    seen: list[SeenEvent] = []

    def act() -> None:
        left = list(runs)
        while left:
            each = chance.choice(left)
            luck = chance.random()
            if each["state"] == "ready":
                fake.begin(each)
            elif luck < 0.06:
                fake.end(each)
                left.remove(each)
            elif luck < 0.1:
                fake.end(each, state="failed", exit_code=1)
                fake.retry(each)
            elif luck < 0.2:
                fake.write(each, chance.randrange(1, 50))
            else:
                fake.write(each, chance.randbytes(chance.randrange(1, 4000)), stream=chance.choice([1, 2]))
            if chance.random() < 0.01:
                fake.restart()
            if chance.random() < 0.3:
                gevent.sleep(chance.random() * 0.02)

    acting = gevent.spawn(act)
    last_id = None
    while not (seen and seen[-1].kind == "run" and seen[-1].json["state"] == "succeeded"):
        by_header = chance.random() < 0.5 or last_id is None
        query = "" if by_header else f"?after={last_id}"
        reader = follow_run(http, run, last_id=last_id if by_header else None, query=query)
        left = chance.randrange(2, 8)
        while left > 0 or (reader.last_id == "0" and chance.random() < 0.9):
            event = reader.next()
            seen = [] if event.kind == "reset" else [*seen, event]
            left -= 1
            if event.kind == "run" and event.json["state"] == "succeeded":
                break
        last_id = reader.last_id
        reader.close()
    acting.get()
    assert_run_in_order(seen, run)
    found = written(seen)
    for (run_id, attempt), content in of_run(fake, run).items():
        if attempt == run["attempt"] or (run_id, attempt) in found:  # a snapshot tells of the newest attempt only
            assert found[run_id, attempt] == content


# -- the place in the address ------------------------------------------------------------------------------------------


def test_after_is_an_id_to_go_on_behind_and_the_header_wins(http: Http, fake: FakeWebMaster) -> None:
    task = fake.task()
    [run] = fake.runs_of(task)
    reader = http.events(f"tasks/{task['id']}/events")
    reader.until(lambda event: event.kind == "run")
    first = reader.last_id
    fake.begin(run)
    fake.write(run, b"one")
    fake.end(run)
    reader.until(is_final)
    behind = next(number for number, event in enumerate(reader.seen) if event.id == first) + 1
    again = http.events(f"tasks/{task['id']}/events?after={first}")
    again.until(is_final)
    assert again.seen == reader.seen[behind:]
    middle = reader.seen[-2].id
    late = http.events(f"tasks/{task['id']}/events?after={first}", last_id=middle)
    assert late.next() == reader.seen[-1]
    for each in (reader, again, late):
        each.close()


@pytest.mark.parametrize("after", ["0", "1", "999999999999999999"])
def test_a_place_that_cannot_be_found_again_is_answered_with_reset(http: Http, fake: FakeWebMaster, after: str) -> None:
    task = fake.task()
    for path in (f"tasks/{task['id']}/events", f"runs/{fake.runs_of(task)[0]['id']}/events", "events"):
        reader = http.events(f"{path}?after={after}")
        assert reader.next().kind == "reset"
        reader.close()


@pytest.mark.parametrize("after", ["", "x", "-1", "1.5", "9" * 19])
def test_what_is_no_place_at_all_is_refused(http: Http, after: str) -> None:
    http.get(f"events?after={after}").refused(422, "invalid_request", "after")


# -- pages that follow from where they were made -----------------------------------------------------------------------


def page_of(fake: FakeWebMaster, task: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """What a page shows, by id: its state, and what else of it can change and change back."""
    if task is not None:
        shown = [fake.tasks[task["id"]], *fake.runs_of(task)]
    else:
        shown = [*fake.tasks.values(), *fake.runs.values(), *fake.agents.values()]
    return {each["id"]: seen_of(each) for each in shown}


def seen_of(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told.get(name) for name in ("state", "paused", "attempt", "slots")}


def keep_up(page: dict[str, dict[str, Any]], event: SeenEvent) -> None:
    told = event.json
    if told.get("forgotten"):
        page.pop(told["id"], None)
    else:
        page[told["id"]] = seen_of(told)


def test_on_an_empty_master_there_is_a_place_too(http: Http, web: Webserver, fake: FakeWebMaster) -> None:
    mark = web.services.streams.mark()
    reader = http.events(f"events?output=false&after={mark}")
    task = fake.task()
    assert reader.next().json["id"] == task["id"]
    reader.close()


def test_a_page_follows_without_a_snapshot_from_where_it_was_made(
    http: Http, web: Webserver, fake: FakeWebMaster
) -> None:
    task = fake.task(runs=2)
    marks = [web.services.streams.mark(task["id"]), web.services.streams.mark()]
    run = fake.runs_of(task)[0]
    fake.begin(run)
    readers = [
        http.events(f"tasks/{task['id']}/events?output=false&after={marks[0]}"),
        http.events(f"events?output=false&after={marks[1]}"),
    ]
    for reader in readers:
        told = reader.next()
        assert told.kind == "run" and told.json["state"] == "running"
        reader.close()
    with pytest.raises(ValueError, match="snapshot"):
        web.services.streams.mark(task["id"], output=True)


def test_a_mark_nobody_uses_is_forgotten(fake: FakeWebMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "IDLE_S", 0.0)
    with webserver_for(fake) as web:
        mark = web.services.streams.mark()
        while web.services.streams._channels:
            fake.agent()
            gevent.sleep(0.01)
        reader = Http(web.address).events(f"events?output=false&after={mark}")
        assert reader.next().kind == "reset"
        reader.close()


def test_many_marks_do_not_pile_up(fake: FakeWebMaster, web: Webserver) -> None:
    streams = web.services.streams
    for number in range(1_000):
        streams.mark(f"task-{number}")
    assert len(streams._channels) <= 2 * stream._IDLE_MOST + 1


def test_what_was_otherwise_while_the_page_was_made_is_told_although_it_is_as_before(
    http: Http, web: Webserver, fake: FakeWebMaster
) -> None:
    task = fake.task()
    other = http.events("events?output=false")
    fake.tell("task", task["id"])
    other.until(lambda event: event.kind == "task")
    with fake.holding("feed"):
        mark = web.services.streams.mark()
        task["paused"] = True
        fake.tell("task", task["id"])
        page = page_of(fake, None)
        task["paused"] = False
        fake.tell("task", task["id"])
    assert page[task["id"]]["paused"] is True
    reader = http.events(f"events?output=false&after={mark}")
    assert reader.next().json["paused"] is False
    for each in (reader, other):
        each.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_page_is_up_to_date_whenever_it_was_made_and_wherever_its_stream_breaks(
    http: Http, web: Webserver, fake: FakeWebMaster, seed: int
) -> None:
    """Pages of everything and of one task; their contents at the end are what the master says."""
    chance = random.Random(seed)
    task = fake.task(runs=3)
    acting = gevent.spawn(act, fake, chance, task)
    wanted = None if seed % 2 else task
    path = "events?output=false" if wanted is None else f"tasks/{task['id']}/events?output=false"
    beside = http.events(path)
    pages = []
    for _ in range(4):
        gevent.sleep(chance.random() * 0.05)
        mark = web.services.streams.mark(wanted and wanted["id"])
        gevent.sleep(chance.random() * 0.02)
        page = {}
        for item_id, shown in page_of(fake, wanted).items():
            page[item_id] = shown
            if chance.random() < 0.3:
                gevent.sleep(chance.random() * 0.002)  # what was read first may be old when the page is done
                page_now = page_of(fake, wanted)
                page = {
                    each: page_now[each] if each == item_id else old for each, old in page.items() if each in page_now
                }
        pages.append((page, http.events(f"{path}&after={mark}")))
    acting.get()
    fake.tell("task", task["id"])
    task["name"] = "the end"
    for page, reader in pages:
        with gevent.Timeout(20, False):
            while page != page_of(fake, wanted):
                event = reader.next()
                assert event.kind != "reset"
                keep_up(page, event)
        assert page == page_of(fake, wanted)
        reader.close()
    beside.close()


def act(fake: FakeWebMaster, chance: random.Random, task: dict[str, Any]) -> None:
    """Things that change, also to and fro."""
    agents = [fake.agent() for _ in range(3)]
    runs = fake.runs_of(task)
    for _ in range(150):
        luck, run = chance.random(), chance.choice(runs)
        agent = chance.choice(agents)
        if luck < 0.3:
            fake.change(agent, state="offline" if agent["state"] == "online" else "online")
        elif luck < 0.5:
            task["paused"] = not task["paused"]
            fake.tell("task", task["id"])
        elif luck < 0.55 and len(agents) > 1:
            agents.remove(agent)
            fake.forget(agent)
        elif luck < 0.6:
            agents.append(fake.agent())
        elif run["state"] == "ready":
            fake.begin(run)
        elif run["state"] == "running":
            fake.end(run, state="failed")
        elif luck < 0.8:
            fake.retry(run)
        if chance.random() < 0.3:
            gevent.sleep(chance.random() * 0.01)


# -- before the real master --------------------------------------------------------------------------------------------


@pytest.fixture
def reader(stack: Stack) -> Iterator[EventReader]:
    mark = stack.web.services.streams.mark()
    reader = stack.http.events(f"events?output=false&after={mark}")
    yield reader
    reader.close()


def test_what_is_done_with_a_real_agent_is_seen(stack: Stack, reader: EventReader) -> None:
    def until(wanted: Any) -> None:
        reader.until(lambda event: event.kind == "agent" and event.json["name"] == "two" and wanted(event.json))

    stack.http.call("PATCH", "agents/two", {"labels": {"role": "web"}})
    until(lambda agent: agent["labels"] == {"role": "web"})
    stack.http.post("agents/two/drain")
    until(lambda agent: agent["state"] == "draining")
    stack.http.post("agents/two/resume")
    until(lambda agent: agent["state"] == "online")
    stack.http.call("PATCH", "agents/two", {"labels": None})
    until(lambda agent: agent["labels"] == {})


def test_a_real_run_is_told_from_its_first_byte_to_its_end(stack: Stack) -> None:
    task = stack.http.post("tasks", request()).json
    held = stack.one.take()
    reader = stack.http.events(f"runs/{held.run_id[:13]}/events")
    for number in range(5):
        stack.one.write(held, b"line %d\n" % number)
    stack.one.end(held)
    reader.until(run_is_final)
    assert_run_in_order(reader.seen, {"id": held.run_id})
    assert written(reader.seen) == {(held.run_id, 1): held.sent}
    assert reader.seen[-1].json["task_id"] == task["id"]
    reader.close()


def test_the_samples_of_a_real_agent(stack: Stack) -> None:
    answer = stack.http.get("agents/one/samples")
    assert answer.status == 200 and answer.json["interval_s"] == 15
    assert isinstance(answer.json["points"], list)
    stack.http.get("agents/nosuch/samples").refused(404, "not_found")


def test_the_runs_of_an_agent(stack: Stack) -> None:
    tasks = [stack.http.post("tasks", request(name=f"of one {number}")).json for number in range(3)]
    stack.http.post(f"tasks/{tasks[1]['id']}/cancel", {})
    first = stack.http.get("agents/one/runs?limit=2").json
    assert [(run["task_id"], run["task_name"]) for run in first["items"]] == [
        (tasks[2]["id"], "of one 2"), (tasks[1]["id"], "of one 1"),
    ]  # fmt: skip
    assert [run["state"] for run in first["items"]] == ["ready", "cancelled"]
    assert first["items"][0]["waiting_because"] and first["items"][0]["agent"]["name"] == "one"
    rest = stack.http.get(f"agents/one/runs?limit=2&cursor={first['next']}").json
    assert rest["items"][0]["task_id"] == tasks[0]["id"]
    for task in tasks:
        stack.http.post(f"tasks/{task['id']}/cancel", {})
    stack.http.get("agents/nosuch/runs").refused(404, "not_found")
    stack.http.get("agents/one/runs?cursor=made-up").refused(422, "invalid_request")


def test_many_targets_are_told_to_those_who_follow_their_task_only(http: Http, fake: FakeWebMaster) -> None:
    readers = [http.events("events?runs=false"), http.events("events?output=false")]
    few, many = fake.task(targets=["one"]), fake.task(targets=[f"host-{n}" for n in range(500)])
    for reader in readers:
        told = {event.json["id"]: event.json["targets"] for event in (reader.next(), reader.next())}
        assert told == {few["id"]: ["one"], many["id"]: None}
        reader.close()
    whole = http.events(f"tasks/{many['id']}/events?output=false")
    assert whole.next().json["targets"] == many["targets"]
    whole.close()


def test_without_runs_a_task_is_told_when_its_counts_change(stack: Stack) -> None:
    reader = stack.http.events("events?runs=false")
    answer = stack.http.post("tasks", request(name="counted", targets=["one", "two"]))
    task_id = answer.json["id"]

    def counts(event: SeenEvent) -> dict[str, int]:
        return dict(event.json["counts"]) if event.kind == "task" and event.json["id"] == task_id else {}

    stack.one.end(stack.one.take())
    reader.until(lambda event: counts(event) == {"ready": 1, "succeeded": 1})
    stack.two.end(stack.two.take())
    reader.until(lambda event: counts(event) == {"succeeded": 2})
    assert {event.kind for event in reader.seen} <= {"task", "agent"}
    reader.close()


def test_a_stream_ends_when_its_token_is_revoked(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, reader: EventReader
) -> None:
    monkeypatch.setattr(events, "RECHECK_S", 0.0)
    made = stack.http.post("tokens", {"name": "soon gone"}).json
    follower = Http(stack.web.address, made["token"]).events("events?output=false")
    stack.http.call("PATCH", "agents/two", {"labels": {"a": "1"}})
    follower.until(lambda event: event.kind == "agent" and event.json["labels"] == {"a": "1"})
    assert stack.http.call("DELETE", f"tokens/{made['id']}").status == 204
    for labels in ({"a": "2"}, None):
        stack.http.call("PATCH", "agents/two", {"labels": labels})
    with pytest.raises(EOFError):
        follower.until(lambda event: event.json.get("labels") == {})
    reader.until(lambda event: event.kind == "agent" and event.json["labels"] == {})


def test_a_master_that_cannot_be_reached_is_told_and_its_return(http: Http, fake: FakeWebMaster) -> None:
    readers = [http.events("events?runs=false"), http.events("events?runs=false")]
    fake.task()
    for reader in readers:
        reader.until(lambda event: event.kind == "task")
    last_ids = [reader.last_id for reader in readers]
    fake.stop()
    for reader in readers:
        reader.until(lambda event: event.kind == "away")
    late = http.events("events?runs=false", last_id=last_ids[0])
    late.until(lambda event: event.kind == "away")
    fake.start()
    for reader in [*readers, late]:
        reader.until(lambda event: event.kind == "back")
    assert [reader.last_id for reader in readers] == last_ids  # they are no places to go on from
    for reader in [*readers, late]:
        reader.close()
