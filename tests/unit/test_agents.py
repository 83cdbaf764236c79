"""Agents: enrolment, registration, two daemons with one identity, silence and return, drain, forget, keys."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from common import auth, faults
from common.config import Settings
from common.errors import Conflict, Forbidden, InvalidRequest, NotFound, RateLimited, Unauthorized, UnknownKey
from master.keys import import_trusted
from master.rates import Rates
from tests.support.fake_agent import FakeAgent, MasterHere, exited, master_here

OFFLINE_S = 3 * 15.0 + 1.0  # an idle agent's three heartbeats


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def stranger(here: MasterHere, name: str = "new") -> FakeAgent:
    """An agent whose key nobody knows."""
    agent = FakeAgent(here.master.agent_server.endpoint, here.master.server_keys.public, name=name)
    here._agents.append(agent)
    return agent


def secret(here: MasterHere) -> str:
    return auth.decode_join_token(here.web("add_agent_token")["token"]).secret


def ask(secret: str, **more: object) -> dict[str, object]:
    return {"secret": secret, "hostname": "h1", "machine_id": "m1", "version": "0", **more}


def state(here: MasterHere, name: str) -> str:
    return here.web("get_agent", name)["state"]  # type: ignore[no-any-return]


# -- enrol -------------------------------------------------------------------------------------------------------------


def test_a_token_makes_one_key_an_agent_and_a_repeat_gets_the_same_answer(here: MasterHere) -> None:
    new, word = stranger(here), secret(here)
    first = new.call("enrol", ask(word))
    assert first["name"] == "h1"
    assert new.call("enrol", ask(word)) == first
    assert new.register()["agent_id"] == first["agent_id"]


def test_a_token_is_good_for_one_key_only(here: MasterHere) -> None:
    one, two, word = stranger(here), stranger(here), secret(here)
    one.call("enrol", ask(word))
    with pytest.raises(Forbidden, match="used already"):
        two.call("enrol", ask(word))
    with pytest.raises(Forbidden, match="not known"):
        two.call("enrol", ask("guessed"))


def test_a_token_expires(here: MasterHere) -> None:
    new, word = stranger(here), secret(here)
    here.clock.advance(86_401.0)  # type: ignore[union-attr]
    with pytest.raises(Forbidden, match="expired"):
        new.call("enrol", ask(word))


def test_a_taken_name_gets_a_number(here: MasterHere) -> None:
    answers = [stranger(here).call("enrol", ask(secret(here), name="web")) for _ in range(3)]
    assert [answer["name"] for answer in answers] == ["web", "web-2", "web-3"]


def test_a_name_that_could_not_be_a_target_is_mended(here: MasterHere) -> None:
    assert stranger(here).call("enrol", ask(secret(here), name=" a*b,\n"))["name"] == "ab"
    assert stranger(here).call("enrol", ask(secret(here), name="*", hostname=""))["name"] == "agent"


def test_enrolling_is_rate_limited(tmp_path: Path) -> None:
    with master_here(tmp_path / "m", manual=True, settings=Settings(enrol_rate=3)) as here:
        new = stranger(here)
        for _ in range(3):
            with pytest.raises(Forbidden):
                new.call("enrol", ask("guess"))
        with pytest.raises(RateLimited):
            new.call("enrol", ask("guess"))
        here.clock.advance(21.0)  # type: ignore[union-attr]
        with pytest.raises(Forbidden):
            new.call("enrol", ask("guess"))


def test_only_tries_that_fail_count(tmp_path: Path) -> None:
    with master_here(tmp_path / "m", manual=True, settings=Settings(enrol_rate=2)) as here:
        for number in range(5):
            stranger(here).call("enrol", ask(secret(here), name=f"web{number}"))
        for _ in range(2):
            with pytest.raises(Forbidden):
                stranger(here).call("enrol", ask("guess"))
        with pytest.raises(RateLimited):
            stranger(here).call("enrol", ask(secret(here)))


def test_one_address_uses_up_its_own_tries_only() -> None:
    rates = Rates(2, what="enrol")
    for _ in range(2):
        rates.charge("192.0.2.1", now_s=0.0)
    with pytest.raises(RateLimited):
        rates.charge("192.0.2.1", now_s=0.0)
    for number in range(18):
        rates.charge(f"198.51.100.{number}", now_s=0.0)
    with pytest.raises(RateLimited):  # all together
        rates.charge("203.0.113.1", now_s=0.0)
    rates.refund("198.51.100.1")
    rates.charge("203.0.113.1", now_s=0.0)
    rates.charge("192.0.2.1", now_s=31.0)


def test_an_unknown_key_may_do_nothing_but_enrol(here: MasterHere) -> None:
    new = stranger(here)
    for method in ("register", "heartbeat", "pull_task", "begin", "result", "output", "blob", "no_such_method"):
        with pytest.raises(UnknownKey):
            new.call(method, {})


def test_each_role_has_its_own_door(here: MasterHere) -> None:
    a = here.agent("a")
    web = here.master.web_keys
    wrong = FakeAgent(here.master.agent_server.endpoint, here.master.server_keys.public, name="web", keys=web)
    here._agents.append(wrong)
    with pytest.raises(Forbidden):
        wrong.call("pull_task", {})
    wrong = FakeAgent(here.master.web_server.endpoint, here.master.server_keys.public, name="a", keys=a.keys)
    here._agents.append(wrong)
    with pytest.raises(Forbidden):
        wrong.call("list_tasks", {}, 1, None)


# -- register ----------------------------------------------------------------------------------------------------------


def test_a_renamed_host_keeps_its_record_and_is_found_by_its_former_name(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    first = a.agent_id
    a.hostname = "renamed"
    assert a.register()["agent_id"] == first
    assert here.web("get_agent", "a")["hostname"] == "renamed"
    found = here.web("list_tasks", {"agent": "host-of-a"}, 50, None)["items"]
    assert [view["id"] for view in found] == [task["id"]]


def test_an_agent_may_take_a_free_name_and_keeps_its_own_instead_of_a_taken_one(here: MasterHere) -> None:
    a, _ = here.agent("a"), here.agent("b")
    a.name = "b"
    assert a.register()["name"] == "a"
    a.name = "fresh"
    assert a.register()["name"] == "fresh"
    assert here.web("get_agent", "fresh")["id"] == a.agent_id
    with pytest.raises(NotFound):
        here.web("get_agent", "a")


@pytest.mark.parametrize("name", ["cafe", "019A", "0198c0de", "0198c0de-", "0198c0de-12ab-7", "{id}", "{prefix}"])
def test_a_name_that_could_be_meant_as_an_id_is_not_taken(here: MasterHere, name: str) -> None:
    a, b = here.agent("a"), here.agent("b")
    wanted = name.format(id=b.agent_id, prefix=b.agent_id[:13])
    a.name = wanted
    assert a.register()["name"] == "a"
    new = stranger(here).call("enrol", ask(secret(here), name=wanted))
    assert new["name"] == f"host-{wanted}"
    task = here.submit(targets=[b.agent_id[:20]])
    assert here.runs(task)[0]["agent"]["name"] == "b"


def test_names_that_only_look_a_little_like_ids_are_taken(here: MasterHere) -> None:
    a = here.agent("a")
    for name in ("web-1", "db", "abc", "3f2a9c1b7d4e", "e5-2690", "feed-me"):
        a.name = name
        assert a.register()["name"] == name


def test_an_agent_may_not_take_the_former_name_of_another(here: MasterHere, caplog: pytest.LogCaptureFixture) -> None:
    a, b = here.agent("a"), here.agent("b")
    a.name = "fresh"
    with caplog.at_level(logging.WARNING, logger="master.enrolment"):
        a.register()
        a.register()
    assert [record.getMessage() for record in caplog.records] == ["agent renamed itself"]
    b.name = "a"
    assert b.register()["name"] == "b"
    a.name = "a"
    assert a.register()["name"] == "a"


def test_a_restarted_daemon_takes_over_at_once(here: MasterHere) -> None:
    a = here.agent("a")
    again = here.agent("a", twin=a, machine_id=a.machine_id)
    assert again.agent_id == a.agent_id
    assert a.beat()["register"]
    assert state(here, "a") == "online"
    assert again.beat()["register"] is False


def test_two_daemons_with_one_identity_get_no_new_work_until_one_is_gone(here: MasterHere) -> None:
    a = here.agent("a")
    twin = here.agent("a", twin=a, machine_id=a.machine_id)
    assert a.beat()["register"]
    with pytest.raises(Conflict, match="Another daemon"):
        a.register()
    assert state(here, "a") == "conflict"
    task = here.submit(targets=["a"])
    assert twin.claim() == []
    assert here.web("explain_run", here.runs(task)[0]["id"])["verdicts"][0]["code"] == "agent_conflict"
    for _ in range(4):  # one of the two falls silent
        here.advance(12.0, step=0.5)
        twin.beat()
    assert state(here, "a") == "online"
    assert len(twin.claim()) == 1


def test_a_copy_on_another_machine_is_refused_while_the_first_speaks(here: MasterHere) -> None:
    a = here.agent("a")
    copy = here.agent("a", twin=a, machine_id="elsewhere", register=False)
    with pytest.raises(Conflict):
        copy.register()
    assert a.beat()["register"] is False
    assert state(here, "a") == "conflict"
    here.advance(OFFLINE_S, step=0.5)
    assert state(here, "a") == "offline"
    assert copy.register()["agent_id"] == a.agent_id
    assert state(here, "a") == "online"


def test_a_rival_is_not_told_what_the_other_runs(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    (claim,) = a.claim()
    a.begin(claim)
    copy = here.agent("a", twin=a, machine_id="elsewhere", register=False)
    with pytest.raises(Conflict):
        copy.register()
    assert a.end(claim) == "stored"
    assert here.states(task) == ["succeeded"]


def test_register_tells_what_runs_and_what_is_gone(here: MasterHere) -> None:
    a = here.agent("a")
    for _ in range(3):
        here.submit(targets=["a"])
    begun, claimed, lost = a.claim(3)
    a.begin(begun)
    a.write(begun, b"12345")
    held = [[claim["run_id"], claim["attempt"], claim["lease"]] for claim in (begun, claimed)]
    gone = ["01890000-0000-7000-8000-000000000000", 1, "x"]
    answer = a.register(held=[*held, gone])
    assert answer["running"] == [[begun["run_id"], 1, begun["lease"], 5]]
    assert answer["drop"] == [gone[0]]
    assert here.web("get_run", lost["run_id"])["state"] == "ready"
    assert here.web("get_run", claimed["run_id"])["state"] == "leased"


# -- silence -----------------------------------------------------------------------------------------------------------


def test_three_missed_heartbeats_make_an_idle_agent_offline_and_a_word_brings_it_back(here: MasterHere) -> None:
    a = here.agent("a")
    last_seen = here.web("get_agent", "a")["last_seen_at_ms"]
    here.advance(44.0)
    assert state(here, "a") == "online"
    here.advance(2.0)
    assert state(here, "a") == "offline"
    assert here.web("get_agent", "a")["last_seen_at_ms"] == last_seen
    a.beat()
    assert state(here, "a") == "online"


def test_an_agent_that_holds_runs_is_expected_sooner(here: MasterHere) -> None:
    a = here.agent("a")
    here.submit(targets=["a"])
    (claim,) = a.claim()
    a.begin(claim)
    here.advance(16.0)
    assert state(here, "a") == "offline"
    a.beat()


def test_an_agents_clock_says_nothing_about_its_liveness(here: MasterHere) -> None:
    a = here.agent("a")
    a.beat(wall_ms=here.clock.wall_ms() + 3_600_000)  # type: ignore[union-attr]
    assert state(here, "a") == "online"
    assert here.web("get_agent", "a")["facts"]["clock_skew"] == 3600.0


def test_facts_are_shown_at_once_and_stored_once_a_minute(here: MasterHere) -> None:
    a = here.agent("a")
    a.beat(facts={"load": [1.5]})
    assert here.web("get_agent", "a")["facts"]["load"] == [1.5]

    def stored() -> object:
        agent = here.master.store.read(lambda tx: tx.get_agent(a.agent_id))
        assert agent is not None
        return agent.facts.get("load")

    here.advance(30.0, step=1.0)
    a.beat(facts={"load": [2.5]})
    assert stored() is None
    here.advance(31.0, step=1.0)
    assert stored() == [2.5]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"boot_at_ms": "oops", "cpus": 4}, {"cpus": 4}),
        ({None: 1, "cpus": 4}, {"cpus": 4}),
        ({7: 1, "os": ["x"], "load": [0.5, 1.0]}, {"load": [0.5, 1.0]}),
        ({"cpus": -1, "load": ["x"], "arch": "x" * 301, "memory_used": 1 << 63, "kernel": "6"}, {"kernel": "6"}),
        ({"cpus": 4, "os": None, "clock_skew": 5}, {"cpus": 4}),
        ({"cpu_percent": float("nan"), "load": [float("inf")]}, {}),
        ({"addresses": ["x" * 99] * 1000}, {"cpus": 2}),
        ({"unheard_of": "x" * 20_000, "cpus": 4}, {"cpus": 2}),
        ([1], {"cpus": 2}),
        (None, {"cpus": 2}),
    ],
)
def test_facts_that_are_wrong_or_unknown_are_left_out(here: MasterHere, said: object, shown: dict[str, object]) -> None:
    a = here.agent("a")
    assert a.beat(facts=said)["register"] is False
    assert here.web("get_agent", "a")["facts"] == shown


def test_labels_and_queues_are_bounded_in_all(here: MasterHere) -> None:
    a = here.agent("a")
    with pytest.raises(InvalidRequest, match="queues and labels"):
        a.register(labels={f"k{n}": "x" * 290 for n in range(100)})
    with pytest.raises(InvalidRequest, match="queues"):
        a.register(queues=["q"] * 1_001)


@pytest.mark.parametrize("method", ["heartbeat", "pull_task", "begin", "release", "output", "result", "register"])
def test_too_many_at_once_are_refused_before_they_are_read(here: MasterHere, method: str) -> None:
    a = here.agent("a")
    many: list[object] = [["", ""]] * 380_000
    ask = {
        "session": a.session,
        "pull": 1,
        "free_slots": 1,
        "held": many,
        "hostname": "",
        "machine_id": "",
        "boot_id": "",
    }
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match="length <= "):
        a.call(method, ask if method in ("heartbeat", "pull_task", "register") else many)
    assert time.thread_time() - began < 1.0  # all of it, sending included; decoding alone took longer
    assert a.beat()["register"] is False


def test_a_pull_brings_no_more_than_the_agent_announced(here: MasterHere) -> None:
    a = here.agent("a", slots=3)
    for _ in range(5):
        here.submit(targets=["a"])
    assert len(a.claim(1_000_000)) == 3


def test_an_agent_known_offline_stays_so_over_a_restart_and_one_that_was_online_gets_its_time(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    here.advance(OFFLINE_S + 100.0, step=1.0)
    b.beat()
    here.web("ready")  # goes through the store behind what the return brings about
    here.restart()
    assert (state(here, "a"), state(here, "b")) == ("offline", "online")
    here.advance(OFFLINE_S)
    assert state(here, "b") == "offline"
    here.reconnect(a)
    assert a.beat()["register"]
    a.register()
    assert state(here, "a") == "online"


# -- what people do ----------------------------------------------------------------------------------------------------


def test_a_draining_agent_finishes_and_gets_nothing_new(here: MasterHere) -> None:
    a = here.agent("a")
    for _ in range(2):
        here.submit(targets=["a"])
    (claim,) = a.claim(1)
    a.begin(claim)
    assert here.web("drain_agent", "a")["state"] == "draining"
    assert a.beat()["draining"]
    assert a.claim(1) == []
    assert a.end(claim) == "stored"
    parked = gevent.spawn(a.pull, 1, wait_s=30.0)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    here.web("resume_agent", "a")
    assert len(parked.get(timeout=10)["runs"]) == 1


def test_announced_labels_that_cannot_be_printed_are_cleaned_so_that_they_can_be_sent_back(here: MasterHere) -> None:
    here.agent("a", labels={"ro\x1ble": "we\u202eb\n", "env": "生产"})
    labels = here.web("get_agent", "a")["labels"]
    assert labels == {"ro\ufffdle": "we\ufffdb\ufffd", "env": "生产"}
    assert here.web("patch_agent", "a", {"labels": {**labels, "more": "x"}})["labels"]["more"] == "x"


def test_labels_and_slots_set_by_a_person_win_over_what_the_agent_announces(here: MasterHere) -> None:
    a = here.agent("a", labels={"env": "test"}, slots=4)
    assert here.web("patch_agent", "a", {"labels": {"env": "prod"}, "slots": 1})["labels"] == {"env": "prod"}
    a.register()
    view = here.web("get_agent", "a")
    assert (view["labels"], view["slots"]) == ({"env": "prod"}, 1)
    for _ in range(2):
        here.submit(targets=["a"])
    assert len(a.claim(4)) == 1
    view = here.web("patch_agent", "a", {"labels": None, "slots": None})
    assert (view["labels"], view["slots"]) == ({"env": "test"}, 4)
    assert len(a.claim(4)) == 1


@pytest.mark.parametrize(
    "changes", [{"labels": {"a": 1}}, {"labels": []}, {"slots": 0}, {"slots": "2"}, {"slots": True}, {"name": "x"}]
)
def test_a_wrong_patch_is_refused(here: MasterHere, changes: dict[str, object]) -> None:
    here.agent("a")
    with pytest.raises(InvalidRequest):
        here.web("patch_agent", "a", changes)


def test_an_online_agent_cannot_be_forgotten(here: MasterHere) -> None:
    here.agent("a")
    with pytest.raises(Conflict):
        here.web("forget_agent", "a")


def test_forgetting_an_agent_ends_its_runs_and_its_key(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    begun = here.submit(targets=["a"])
    claimed_by_any = here.submit(count=1)
    addressed = here.submit(targets=["a", "b"])
    claims = a.claim(2)
    a.begin(claims[0])
    here.advance(16.0)
    here.advance(16.0)
    assert here.states(claimed_by_any) == ["ready"]  # the lease of what was only claimed has run out
    assert here.web("forget_agent", "a") is True
    assert here.states(begun) == ["failed"]
    assert here.runs(begun)[0]["outcome"] == "lost"
    assert here.states(addressed) == ["cancelled", "ready"]
    assert "forgotten" in here.runs(addressed)[0]["detail"]
    b.beat()
    assert {claim["task_id"] for claim in b.claim(4)} == {claimed_by_any["id"], addressed["id"]}
    with pytest.raises(UnknownKey):
        a.beat()
    with pytest.raises(NotFound):
        here.web("get_agent", "a")
    with pytest.raises(InvalidRequest):
        here.submit(targets=["a"])
    found = here.web("list_tasks", {"agent": a.agent_id}, 50, None)["items"]
    assert {task["id"] for task in found} >= {begun["id"], addressed["id"]}


def test_a_retry_leaves_runs_of_forgotten_agents_alone(here: MasterHere) -> None:
    here.agent("a")
    b = here.agent("b")
    task = here.submit(targets=["a", "b"])
    b.run_one(exited(1))
    here.advance(OFFLINE_S)
    here.web("forget_agent", "a")
    view = here.web("retry_task", task["id"], "failed")
    assert view["counts"] == {"cancelled": 1, "ready": 1}


def test_a_submit_beside_a_forget_leaves_nothing_behind(here: MasterHere) -> None:
    fleet = [here.agent(f"gone-{n}") for n in range(6)]
    here.advance(OFFLINE_S)
    for agent in fleet:
        calls = [gevent.spawn(here.submit, targets=[agent.name]) for _ in range(2)]
        calls.insert(1, gevent.spawn(here.web, "forget_agent", agent.name))
        gevent.joinall(calls)
        assert calls[1].value is True
    left = here.web("list_tasks", {"state": ["waiting", "running"]}, 50, None)["items"]
    assert left == []


def test_forgetting_goes_on_until_nothing_is_left(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("master.agents.SLICE", 2)
    here.agent("a")
    tasks = [here.submit(targets=["a"]) for _ in range(5)]
    here.advance(OFFLINE_S)
    here.web("forget_agent", "a")
    assert [here.states(task) for task in tasks] == [["cancelled"]] * 5


def test_a_retry_does_not_reopen_runs_of_an_agent_that_is_being_forgotten(here: MasterHere) -> None:
    here.agent("a"), here.agent("b")
    task = here.submit(targets=["a", "b"])
    here.web("cancel_task", task["id"])
    presence = here.master.fleet.find("a")[0]
    presence.leaving = True
    assert here.web("retry_task", task["id"], "all")["counts"] == {"cancelled": 1, "ready": 1}


def test_an_agent_that_came_back_is_not_forgotten_half(here: MasterHere) -> None:
    a = here.agent("a")
    here.advance(OFFLINE_S)
    a.beat()
    with pytest.raises(Conflict, match="online"):
        here.web("forget_agent", "a")
    task = here.submit(targets=["a"])
    assert len(a.claim()) == 1
    assert here.states(task) == ["leased"]


def test_a_revoked_agents_parked_pull_ends_at_once_and_carries_nothing(here: MasterHere) -> None:
    a = here.agent("a")
    parked = gevent.spawn(a.pull, 1, wait_s=30.0)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    here.web("revoke_agent", "a")
    assert parked.get(timeout=10)["runs"] == []
    task = here.submit(targets=["a"])
    with pytest.raises(UnknownKey):
        a.pull(1)
    assert here.states(task) == ["ready"]


def test_a_revoked_agent_is_not_resumed(here: MasterHere) -> None:
    here.agent("a")
    here.web("revoke_agent", "a")
    with pytest.raises(Conflict, match="revoked"):
        here.web("resume_agent", "a")
    here.restart()
    with pytest.raises(Conflict, match="revoked"):
        here.web("resume_agent", "a")
    assert here.master.fleet.find("a")[0].agent.draining
    again = stranger(here, "a")
    assert again.call("enrol", ask(secret(here), name="a"))["name"] == "a-2"
    again.register()
    here.submit(targets=["a-2"])
    assert len(again.claim()) == 1


def test_a_return_that_could_not_be_stored_is_tried_again(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"], lost_after=0)
    (claim,) = a.claim()
    a.begin(claim)
    here.advance(OFFLINE_S)
    assert here.runs(task)[0]["silent_since_ms"] is not None
    presence = here.master.fleet.find("a")[0]
    faults.arm("store-before-commit=fail:EIO")
    try:
        a.beat()
        while not presence.return_due:
            here.web("list_agents", 1, None)
    finally:
        faults.arm("")
    assert here.runs(task)[0]["silent_since_ms"] is not None
    here.keep()
    assert here.runs(task)[0]["silent_since_ms"] is None
    assert not presence.return_due


# -- keys and tokens ---------------------------------------------------------------------------------------------------


def test_keys_trusted_by_file_are_imported_once_and_must_be_private(here: MasterHere, tmp_path: Path) -> None:
    file = tmp_path / "trusted.json"
    pair = auth.new_key_pair()
    auth.write_private(file, json.dumps([{"public_key": pair.public_text, "role": "agent", "name": "local"}]).encode())
    assert import_trusted(here.master.store, file) == 1
    assert import_trusted(here.master.store, file) == 0
    file.chmod(0o644)
    with pytest.raises(auth.BadKeyFile):
        import_trusted(here.master.store, file)
    auth.write_private(file, b"[{}]")
    with pytest.raises(InvalidRequest, match="public_key"):
        import_trusted(here.master.store, file)
    assert import_trusted(here.master.store, tmp_path / "none.json") == 0


def test_a_trusted_key_gets_its_record_under_its_name_at_the_first_register(here: MasterHere) -> None:
    a = here.agent("a", hostname="the-host")
    view = here.web("get_agent", "a")
    assert (view["id"], view["hostname"]) == (a.agent_id, "the-host")
    here.restart(a)
    assert a.register()["agent_id"] == view["id"]


def test_the_admin_token_is_private_and_known(here: MasterHere) -> None:
    file = here.data_dir / "admin.token"
    assert file.stat().st_mode & 0o777 == 0o600
    token = file.read_text().strip()
    found = here.web("check_token", auth.token_hash(token))
    assert (found["name"], found["role"]) == ("admin", "admin")
    with pytest.raises(Unauthorized):
        here.web("check_token", auth.token_hash("guess"))
    here.restart()
    assert file.read_text().strip() == token
    assert here.web("check_token", auth.token_hash(token))["role"] == "admin"


def test_join_tokens_name_the_door_and_the_masters_key(here: MasterHere) -> None:
    answer = here.web("add_agent_token")
    token = auth.decode_join_token(answer["token"])
    assert token.endpoint == here.master.agent_server.endpoint
    assert token.server_key == here.master.server_keys.public_text
    assert answer["line"] == f"muster agent --join {answer['token']}"
