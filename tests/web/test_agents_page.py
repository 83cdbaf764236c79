"""The pages of agents over HTTP, as a browser without scripts sees them, before a real master."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from common.auth import decode_join_token, new_key_pair
from common.rpc import RpcClient
from tests.support.rpc import quick_backoff
from tests.web.conftest import Stack
from tests.web.test_task_page import Visitor
from webserver.pages.agent import facts_of
from webserver.pages.agents import load_of, percent


@pytest.fixture
def visitor(stack: Stack) -> Visitor:
    return Visitor(stack)


@pytest.fixture
def untouched(stack: Stack) -> Iterator[str]:
    """The id of an agent whose labels and slots are its own again afterwards."""
    yield stack.one.id
    stack.http.call("PATCH", f"agents/{stack.one.id}", {"labels": None, "slots": None})
    stack.http.post(f"agents/{stack.one.id}/resume")


def told(stack: Stack, agent: str) -> Any:
    return stack.http.get(f"agents/{agent}").json


def enrol(stack: Stack, name: str) -> str:
    """A host that joined and was never heard again: its id."""
    keys = new_key_pair()
    rpc = RpcClient(
        stack.master.agent_server.endpoint,
        server_key=stack.master.server_keys.public,
        public_key=keys.public,
        secret_key=keys.secret,
        max_message_bytes=1 << 20,
        backoff=quick_backoff(),
    )
    rpc.start()
    secret = decode_join_token(stack.http.post("agent-tokens").json["token"]).secret
    ask = {"secret": secret, "hostname": "h", "machine_id": "m", "version": "0", "name": name}
    try:
        found: str = rpc.call("enrol", ask, timeout_s=20.0)["agent_id"]
        return found
    finally:
        rpc.stop()


def test_the_list_is_whole_without_scripts(visitor: Visitor) -> None:
    page = visitor.get("/agents").body.decode()
    rows = page.partition('data-list="agents"')[2].partition("</ul>")[0]
    assert re.findall(r'title="(one|two)">', rows) == ["one", "two"]
    assert "one.lan" in rows and "online" in rows and "0/8" in rows
    assert "style=" not in page and 'href="#add"' in page and 'action="/join-tokens#add"' in page


def test_the_list_is_filtered(visitor: Visitor) -> None:
    assert 'title="two"' not in visitor.get("/agents?q=ONE.lan").body.decode().partition("<template")[0]
    assert "No agents match" in visitor.get("/agents?state=offline").body.decode()
    refused = visitor.get("/agents?state=asleep")
    assert refused.status == 422 and "There is no such state." in refused.body.decode()
    assert visitor.get("/agents?cursor=made-up").status == 422


def test_a_join_token_is_shown_once(stack: Stack, visitor: Visitor) -> None:
    whole = visitor.post("/join-tokens")
    assert whole.status == 201 and 'class="card open"' in whole.body.decode()
    part = visitor.post("/join-tokens", script=True).body.decode()
    assert part.lstrip().startswith('<div id="join" data-made="')
    found = re.search(r"muster agent --join (\S+)</code>", part)
    assert found is not None
    assert decode_join_token(found[1]).endpoint == stack.master.agent_server.endpoint
    assert "which other hosts cannot reach" in part  # this master listens on loopback
    assert f"sudo /opt/muster/bin/muster agent --join {found[1]} --state /var/lib/muster-agent</code>" in part
    assert "ExecStart=/opt/muster/bin/muster agent --state /var/lib/muster-agent\n" in part
    assert found[1] not in visitor.get("/agents").body.decode()


def test_the_page_of_one_is_whole_without_scripts(stack: Stack, visitor: Visitor) -> None:
    page = visitor.get("/agents/one").body.decode()
    assert "<title>one · muster</title>" in page and stack.one.id in page
    assert re.search(r"<dt[^>]*>CPUs</dt><dd>2</dd>", page)
    assert f'href="/tasks?agent={stack.one.id}"' in page and "style=" not in page
    assert re.search(r'data-act="forget" hidden', page) and not re.search(r'data-act="drain" hidden', page)
    assert visitor.get("/agents/nobody").status == 404
    assert visitor.get(f"/agents/{stack.one.id}/facts").body.decode().strip().startswith("<section")
    assert 'id="runs"' in visitor.get("/agents/one/runs").body.decode()


def test_drain_and_resume(stack: Stack, visitor: Visitor, untouched: str) -> None:
    answer = visitor.post("/agents/one/drain")
    assert (answer.status, answer.headers["Location"]) == (303, f"/agents/{untouched}")
    assert told(stack, untouched)["state"] == "draining"
    assert not re.search(r'data-act="resume" hidden', visitor.get("/agents/one").body.decode())
    visitor.post(f"/agents/{untouched}/resume")
    assert told(stack, untouched)["state"] == "online"


def test_labels_are_added_taken_away_and_reset(stack: Stack, visitor: Visitor, untouched: str) -> None:
    path = f"/agents/{untouched}/labels"
    visitor.post(path, label=" role = <b>web</b> ")
    visitor.post(path, label="a/b %=x=y")
    assert told(stack, untouched)["labels"] == {"role": "<b>web</b>", "a/b %": "x=y"}
    page = visitor.get(f"/agents/{untouched}").body.decode()
    assert "role=&lt;b&gt;web&lt;/b&gt;" in page and 'name="reset"' in page
    (_role, odd) = re.findall(r'name="remove" value="([^"]*)"', page)
    visitor.post(path, remove=odd)
    assert told(stack, untouched)["labels"] == {"role": "<b>web</b>"}
    for text in ("nonsense", "=x", "a=\u202e", "a=" + 301 * "x"):
        refused = visitor.post(path, label=text)
        assert refused.status == 422 and 'id="label-fault"' in refused.body.decode(), text
    visitor.post(path, reset="1")
    assert told(stack, untouched)["labels"] == {}
    assert 'name="reset"' not in visitor.get(f"/agents/{untouched}").body.decode()


def test_slots_are_set_and_left_to_the_agent(stack: Stack, visitor: Visitor, untouched: str) -> None:
    path = f"/agents/{untouched}/slots"
    assert visitor.post(path, slots="3").status == 303
    assert told(stack, untouched)["slots"] == 3
    for text in ("0", "-1", "x", "1.5", "10001", "٣"):
        refused = visitor.post(path, slots=text)
        assert refused.status == 422 and f'value="{text}"' in refused.body.decode()
    assert told(stack, untouched)["slots"] == 3
    assert visitor.post(path, slots="").status == 303
    assert told(stack, untouched)["slots"] == 8


def test_an_agent_that_speaks_is_not_forgotten(stack: Stack, visitor: Visitor) -> None:
    refused = visitor.post("/agents/two/forget")
    assert refused.status == 409 and "cannot be forgotten while its agent speaks" in refused.body.decode()
    assert told(stack, "two")["state"] == "online"


def test_a_host_that_was_never_heard(stack: Stack, visitor: Visitor) -> None:
    name = "<b>host</b>/a b?#% 上海"
    agent = enrol(stack, name)
    page = visitor.get(f"/agents/{quote(name, safe='')}").body.decode()
    assert "<b>host" not in page and "&lt;b&gt;host&lt;/b&gt;/a b?#% 上海" in page
    assert "The agent has not told anything of its host yet." in page
    rows = visitor.get("/agents?state=offline").body.decode().partition("<template")[0]
    assert "&lt;b&gt;host" in rows and "<b>host" not in rows
    assert visitor.post(f"/agents/{agent}/revoke").status == 303
    answer = visitor.post(f"/agents/{agent}/forget")
    assert (answer.status, answer.headers["Location"]) == (303, "/agents")
    assert stack.http.get(f"agents/{agent}").status == 404
    assert visitor.get(f"/agents/{agent}").status == 404
    assert visitor.post(f"/agents/{agent}/drain").status == 404


def test_many_hosts_are_told_page_by_page(stack: Stack, visitor: Visitor) -> None:
    ids = [enrol(stack, f"many-{number:03}") for number in range(103)]
    try:
        first = visitor.get("/agents?q=many-").body.decode()
        assert len(re.findall(r'data-name="many-', first)) == 100
        further = re.search(r'<a href="([^"]+)" rel="next">', first)
        assert further is not None
        rest = visitor.get(unescape(further[1])).body.decode()
        assert re.findall(r'data-name="(many-[^"]+)"', rest) == ["many-100", "many-101", "many-102"]
        assert 'rel="first"' in rest and 'rel="next"' not in rest
    finally:
        for agent in ids:
            stack.http.call("DELETE", f"agents/{agent}")


def test_facts_are_told_whatever_they_are() -> None:
    facts = {
        "os": "\x1b[31mred", "cpus": "many", "load": [0.5, 1, None], "memory_total": 2 << 30, "memory_used": 1 << 30,
        "disk_free": True, "addresses": "none", "boot_at": "yesterday", "clock_skew": -90, "odd": {"a": [1]},
    }  # fmt: skip
    found = dict(facts_of({"facts": facts}))
    assert found["odd"] == '{"a": [1]}' and found["Started"] == "yesterday" and found["Disk space free"] == "true"
    assert found["CPUs"] == "many" and found["Addresses"] == "none"
    assert facts_of({"facts": None}) == []


@pytest.mark.parametrize(
    ("part", "whole", "share"),
    [(1, 4, 25.0), (5, 4, 100.0), (-1, 4, 0.0), (1, 0, None), ("1", 4, None), (True, 4, None), (1, None, None)],
)
def test_shares(part: Any, whole: Any, share: float | None) -> None:
    assert percent(part, whole) == share


def test_a_silent_agents_load_is_not_known() -> None:
    agent = {"state": "offline", "facts": {"cpu_percent": 3}}
    assert load_of(agent) == {"cpu": None, "memory": None}
    assert load_of({**agent, "state": "online"}) == {"cpu": 3.0, "memory": None}
