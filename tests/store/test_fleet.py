"""Agents, keys, tokens, blobs and the change feed: what is stored comes back, and names and hashes are unique."""

from __future__ import annotations

import pytest

from common.errors import Conflict, VersionConflict
from common.model import Agent, ApiToken, FeedEvent, JoinToken, LoginLink, Role, TokenKind, TrustedKey, evolve
from master.store.base import Store, WriteTx
from tests.store.making import add_addressed, add_free, make_agent

EVERY_FIELD = Agent(
    id="0190-agent",
    name="web-1",
    hostname="web-1.example",
    enrolled_at_ms=5,
    labels={"env": "prod"},
    facts={"cpus": 4, "load": [0.5, 1.0], "addresses": ["::1"]},
    slots=4,
    slots_set=2,
    queues=["slow"],
    draining=True,
    last_seen_at_ms=6,
    boot_id="b",
    machine_id="m",
    former_names=["old-1", "old-2"],
    version=3,
)


def test_every_field_of_an_agent_comes_back(store: Store) -> None:
    store.write(lambda tx: tx.save_agent(EVERY_FIELD, expect=None))
    assert store.read(lambda tx: tx.get_agent(EVERY_FIELD.id)) == EVERY_FIELD
    assert store.read(lambda tx: tx.list_agents()) == [EVERY_FIELD]


def test_agents_are_guarded_by_id_name_and_version(store: Store) -> None:
    first, second = make_agent("a", "one"), make_agent("b", "two")
    store.write(lambda tx: [tx.save_agent(first, expect=None), tx.save_agent(second, expect=None)])
    for agent in (make_agent("a", "three"), make_agent("c", "one")):
        with pytest.raises(Conflict):
            store.write(lambda tx, a=agent: tx.save_agent(a, expect=None))
    with pytest.raises(Conflict, match="'two' exists already"):
        store.write(lambda tx: tx.save_agent(evolve(first, name="two", version=2), expect=1))
    with pytest.raises(VersionConflict):
        store.write(lambda tx: tx.save_agent(evolve(first, name="four", version=9), expect=8))
    with pytest.raises(VersionConflict):
        store.write(lambda tx: tx.save_agent(make_agent("d", "five"), expect=1))
    store.write(lambda tx: tx.save_agent(evolve(first, name="six", version=2), expect=1))
    assert [agent.name for agent in store.read(lambda tx: tx.list_agents())] == ["six", "two"]


def test_agents_are_found_by_id_name_and_prefix(store: Store) -> None:
    one, two, odd = make_agent("0190-aa-1", "one"), make_agent("0190-aa-2", "two"), make_agent("0190-b", "0190-aa-1")
    store.write(lambda tx: [tx.save_agent(agent, expect=None) for agent in (one, two, odd)])

    def find(text: str) -> list[Agent]:
        return store.read(lambda tx: tx.find_agents(text))

    assert find("0190-aa-1") == [one]  # an id wins over somebody's name
    assert find("two") == [two]
    assert find("0190-aa") == [one, two]
    assert find("0190-b") == [odd]
    assert find("019") == [] and find("") == [] and find("on") == []


def test_agents_are_found_by_a_former_name(store: Store) -> None:
    store.write(lambda tx: tx.save_agent(EVERY_FIELD, expect=None))
    assert store.read(lambda tx: tx.agents_by_former_name("old-2")) == [EVERY_FIELD]
    assert store.read(lambda tx: tx.agents_by_former_name("web-1")) == []


def test_forgetting_an_agent_takes_its_keys_and_offers(store: Store) -> None:
    store.write(lambda tx: tx.save_agent(make_agent("a", "one"), expect=None))
    store.write(lambda tx: tx.save_key(TrustedKey(public_key="k", role=Role.AGENT, agent_id="a")))
    store.write(lambda tx: tx.save_key(TrustedKey(public_key="other", role=Role.WEB)))
    task = store.write(lambda tx: add_addressed(tx, ["a", "b"]))
    store.write(lambda tx: add_free(tx, 1, candidates=["a", "b"]))
    store.write(lambda tx: tx.forget_agent("a"))
    assert store.read(lambda tx: tx.get_agent("a")) is None
    assert [key.public_key for key in store.read(lambda tx: tx.list_keys())] == ["other"]
    assert store.read(lambda tx: tx.heads("a", None, limit=9)) == []
    assert len(store.read(lambda tx: tx.heads("b", None, limit=9))) == 2
    assert len(store.read(lambda tx: tx.runs_of_agent("a", limit=9)).items) == 1
    assert task.total == 2


def test_sessions_are_used_and_removed(store: Store) -> None:
    session = ApiToken(
        id="s", name="ann", role=Role.ADMIN, sha256="ab", created_at_ms=3, kind=TokenKind.SESSION, last_used_at_ms=3,
        expires_engine_s=9.5, about="Firefox",
    )  # fmt: skip
    gone = ApiToken(id="t", name="ci", role=Role.ADMIN, sha256="cd", created_at_ms=3, revoked=True)
    store.write(lambda tx: [tx.save_token(session), tx.save_token(gone)])
    assert store.read(lambda tx: tx.list_tokens()) == [session, gone]
    used = [store.write(lambda tx, i=i: tx.note_use(i, at_ms=7, expires_engine_s=12.5)) for i in ("s", "t", "u")]
    assert used == [True, False, False]
    assert store.read(lambda tx: tx.list_tokens())[0] == evolve(session, last_used_at_ms=7, expires_engine_s=12.5)
    assert [store.write(lambda tx: tx.delete_token("s")) for _ in range(2)] == [True, False]
    assert store.read(lambda tx: tx.list_tokens()) == [gone]


def test_login_links_are_stored_replaced_and_trimmed(store: Store) -> None:
    links = [LoginLink(sha256=f"{n}", name="ann", created_at_ms=1, expires_engine_s=float(n)) for n in range(5)]
    store.write(lambda tx: [tx.save_login_link(link) for link in links])
    used = evolve(links[4], used=True)
    store.write(lambda tx: tx.save_login_link(used))
    assert store.read(lambda tx: (tx.get_login_link("4"), tx.get_login_link("9"))) == (used, None)
    assert store.read(lambda tx: (tx.login_links_before(0.0), tx.login_links_before(0.5))) == (False, True)
    assert [store.write(lambda tx: tx.trim_login_links(3.0, limit=2)) for _ in range(3)] == [2, 1, 0]
    assert store.read(lambda tx: tx.get_login_link("3")) == links[3]


def test_join_tokens_that_were_never_used_are_trimmed(store: Store) -> None:
    tokens = [JoinToken(sha256=f"{n}", created_at_ms=1, expires_engine_s=float(n)) for n in range(5)]
    tokens[1] = evolve(tokens[1], used_by="k", agent_id="a")
    store.write(lambda tx: [tx.save_join_token(token) for token in tokens])
    assert store.read(lambda tx: (tx.join_tokens_before(0.0), tx.join_tokens_before(0.5))) == (False, True)
    assert [store.write(lambda tx: tx.trim_join_tokens(4.0, limit=2)) for _ in range(3)] == [2, 1, 0]
    assert [store.read(lambda tx, n=n: tx.get_join_token(n)) for n in ("1", "4")] == [tokens[1], tokens[4]]


def test_keys_tokens_and_join_tokens_are_stored_and_replaced(store: Store) -> None:
    key = TrustedKey(public_key="k", role=Role.AGENT, agent_id="a", name="one")
    token = ApiToken(id="t", name="ci", role=Role.ADMIN, sha256="ab", created_at_ms=3)
    join = JoinToken(sha256="cd", created_at_ms=4, expires_engine_s=5.5)

    def save(tx: WriteTx) -> None:
        tx.save_key(key)
        tx.save_token(token)
        tx.save_join_token(join)

    store.write(save)
    assert store.read(lambda tx: (tx.list_keys(), tx.list_tokens())) == ([key], [token])
    assert store.read(lambda tx: tx.get_join_token("cd")) == join
    key, token = evolve(key, revoked=True), evolve(token, revoked=True)
    join = evolve(join, used_by="k", agent_id="a")
    store.write(save)
    assert store.read(lambda tx: (tx.list_keys(), tx.list_tokens())) == ([key], [token])
    assert store.read(lambda tx: tx.get_join_token("cd")) == join


def test_blobs_are_stored_once_and_read_in_pieces(store: Store) -> None:
    content = bytes(range(256)) * 1000
    store.write(lambda tx: tx.put_blob("h", content))
    store.write(lambda tx: tx.put_blob("h", b"a repeat says nothing new"))
    store.write(lambda tx: tx.put_blob("empty", b""))
    assert store.read(lambda tx: (tx.blob_size("h"), tx.blob_size("empty"))) == (256_000, 0)
    offsets = range(0, 300_000, 100_000)
    pieces = [store.read(lambda tx, o=o: tx.blob_piece("h", offset=o, length=100_000)) for o in offsets]
    assert [len(piece) for piece in pieces] == [100_000, 100_000, 56_000] and b"".join(pieces) == content
    assert store.read(lambda tx: tx.blob_piece("h", offset=256_000, length=9)) == b""
    assert store.read(lambda tx: tx.blob_piece("h", offset=999_999, length=9)) == b""
    assert store.read(lambda tx: tx.blob_piece("unknown", offset=0, length=9)) == b""
    assert store.read(lambda tx: tx.blob_piece("empty", offset=0, length=9)) == b""


def append(store: Store, number: int) -> list[int]:
    return store.write(
        lambda tx: [tx.append_event("run", task_id="t", run_id="r", end_offset=n) for n in range(number)]
    )


def test_the_change_feed_is_read_in_order_from_anywhere(store: Store) -> None:
    assert store.read(lambda tx: tx.event_bounds()) == (0, 0)
    seqs = append(store, 5)
    assert store.read(lambda tx: tx.event_bounds()) == (seqs[0], seqs[-1])
    found = store.read(lambda tx: tx.events_after(seqs[1], limit=2))
    assert found == [
        FeedEvent(seq=seqs[n], kind="run", task_id="t", run_id="r", end_offset=n) for n in (2, 3)
    ]  # fmt: skip
    assert store.read(lambda tx: tx.events_after(seqs[-1], limit=2)) == []


def test_the_change_feed_is_trimmed_by_number_and_age_in_steps(store: Store) -> None:
    assert store.write(lambda tx: tx.trim_events(keep=0, limit=10)) == 0
    store.write(lambda tx: tx.set_engine_mark(1.0, 1_000))
    append(store, 10)
    store.write(lambda tx: tx.set_engine_mark(2.0, 2_000))
    seqs = append(store, 10)
    assert store.write(lambda tx: tx.trim_events(keep=18, limit=1)) == 1
    assert store.write(lambda tx: tx.trim_events(keep=18, limit=9)) == 1
    assert store.write(lambda tx: tx.trim_events(keep=18, limit=9)) == 0
    assert store.write(lambda tx: tx.trim_events(keep=100, limit=5, before_ms=1_500)) == 5
    assert store.write(lambda tx: tx.trim_events(keep=100, limit=5, before_ms=1_500)) == 3
    assert store.write(lambda tx: tx.trim_events(keep=100, limit=5, before_ms=1_500)) == 0
    assert store.read(lambda tx: tx.event_bounds()) == (seqs[0], seqs[-1])
    # The newest row tells a reader that is up to date from one out of the future, so it stays whatever is asked for.
    assert store.write(lambda tx: tx.trim_events(keep=0, limit=99, before_ms=9_000)) == 9
    assert store.read(lambda tx: tx.event_bounds()) == (seqs[-1], seqs[-1])
