"""Pages of agents in a browser: every form of them, a host that joins by the line shown, and drain, labels, charts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import LANGUAGES, Language, Pages, check, check_forms
from tests.support.cluster import Cluster, muster
from tests.support.processes import Spawned

NAME = "0 测试 <b>/x?#%y"


def row(page: Page, name: str) -> Locator:
    return page.locator(".agent-row", has=page.get_by_role("link", name=name, exact=True))


def is_live(page: Page) -> None:
    expect(page.locator("#live")).to_have_attribute("data-state", "open")


@pytest.fixture
def joined(cluster: Cluster) -> Iterator[list[Spawned]]:
    """Processes of agents that the test starts; they and their records are gone afterwards."""
    started: list[Spawned] = []
    yield started
    for agent in started:
        agent.send()
        agent.wait()
    for known in cluster.client.agents():
        if known.name.startswith(NAME):
            cluster.wait_agent(known.id, "offline")
            cluster.client.forget_agent(known.id)


def join(cluster: Cluster, line: str, name: str) -> Spawned:
    """Do on a host what the page says."""
    words = shlex.split(line)
    assert words[:3] == ["muster", "agent", "--join"]
    state = cluster.path / f"joined-{abs(hash(name))}"
    return Spawned(
        muster(*words[1:], "--state", str(state), "--name", name), environ=cluster.environ, mark=cluster.mark
    )


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("path", ["/agents", "/agents#add", "/agents?state=conflict", "/agents/{agent}"])
def test_every_form(pages: Pages, cluster: Cluster, path: str, language: Language) -> None:
    page = pages.open(path.format(agent=cluster.agents[0]), language=language)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    is_live(page)
    check_forms(page)


def test_a_host_joins_and_leaves(pages: Pages, cluster: Cluster, joined: list[Spawned]) -> None:
    page, other = pages.open("/agents#add"), pages.open("/agents")
    is_live(other)
    page.get_by_role("button", name="Create join command").click()
    expect(page.locator("#arrival")).to_contain_text("Waiting for the host")
    expect(page.locator("#join")).to_contain_text("which other hosts cannot reach")
    expect(page.locator("#join [data-copy='#join-line']")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#notices")).to_contain_text("Copied.")
    line = page.evaluate("navigator.clipboard.readText()")
    joined.append(join(cluster, line, NAME))
    expect(page.locator("#arrival")).to_contain_text(f"{NAME} has joined.")
    expect(page.locator(".agent-row").first).to_contain_text(NAME)  # by its place in the alphabet
    expect(row(other, NAME)).to_contain_text("online")
    check(page)
    page.get_by_role("link", name="Open it").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(NAME)
    expect(page.get_by_role("button", name="Forget")).to_be_hidden()

    joined[0].send()
    joined[0].wait()
    expect(page.locator("h1 .badge")).to_have_text("offline")
    expect(row(other, NAME)).to_contain_text("offline")
    check(page)
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_role("dialog")).to_contain_text("count as lost")
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page).to_have_url(re.compile("/agents$"))
    expect(page.locator("#notices")).to_contain_text("is forgotten")
    expect(row(other, NAME)).to_have_count(0)


def test_drained_elsewhere_and_resumed_here(pages: Pages, cluster: Cluster) -> None:
    agent = cluster.agents[1]
    page, fleet = pages.open(f"/agents/{agent}"), pages.open("/agents")
    is_live(page)
    is_live(fleet)
    cluster.client.drain_agent(agent)
    try:
        expect(page.locator("h1 .badge")).to_have_text("draining")
        expect(row(fleet, agent)).to_contain_text("draining")
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Drain")).to_be_visible()
        expect(row(fleet, agent)).to_contain_text("online")
    finally:
        cluster.client.resume_agent(agent)


def test_labels_and_slots(pages: Pages, cluster: Cluster) -> None:
    agent = cluster.agents[2]
    page, fleet = pages.open(f"/agents/{agent}", width=390), pages.open("/agents")
    is_live(fleet)
    field = page.get_by_placeholder("name=value")
    pages.allow("status of 422")
    field.fill("nonsense")
    field.press("Enter")
    expect(page.locator("#label-fault")).to_contain_text("Write it as name=value.")
    check(page)
    field.fill("role=<i>web</i>")
    field.press("Enter")
    expect(page.locator("#labels")).to_contain_text("role=<i>web</i>")
    expect(row(fleet, agent).locator(".chip")).to_have_text("role=<i>web</i>")
    fleet.get_by_role("searchbox").fill("ROLE=<i>")
    expect(fleet.locator(".agent-row")).to_have_count(1)
    page.get_by_role("spinbutton").fill("7")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-f=held]")).to_have_text("0/7")
    expect(row(fleet, agent)).to_contain_text("0/7")
    page.get_by_role("button", name="Remove role").click()
    expect(page.locator("#labels")).to_have_text("No labels.")
    page.get_by_role("spinbutton").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-f=held]")).not_to_have_text("0/7")
    page.get_by_role("button", name="Go back to what it announces").click()
    expect(page.get_by_text("As the agent announces them.")).to_be_visible()


def test_what_runs_on_an_agent_is_seen(pages: Pages, cluster: Cluster) -> None:
    agent = cluster.agents[0]
    page = pages.open(f"/agents/{agent}")
    is_live(page)
    task = cluster.client.submit("sleep 600", targets=[agent], name="agents long one")
    running = page.locator("[data-list=running] li", has_text="agents long one")
    expect(running).to_have_count(1)
    cluster.client.cancel(task.id)
    ended = page.locator("[data-list=recent] li", has_text="agents long one")
    expect(ended).to_contain_text("cancelled")
    expect(ended).to_contain_text("ended")
    expect(running).to_have_count(0)
    ended.get_by_role("button", name="Output").click()
    expect(page.locator("#panel")).to_be_visible()


def test_each_run_is_told_as_it_was_here(pages: Pages, cluster: Cluster) -> None:
    first, second = cluster.agents[:2]
    page = pages.open(f"/agents/{second}")
    is_live(page)
    cluster.run("exit 3", targets=[first, second], parallel=1, fail_count=1, name="failed elsewhere")
    here = page.locator("[data-list=recent] li", has_text="failed elsewhere")
    expect(here.locator(".badge")).to_have_text("skipped")
    cluster.client.drain_agent(second)
    try:
        task = cluster.client.submit("true", targets=[second], name="has to wait here")
        waits = page.locator("[data-list=waiting] li", has_text="has to wait here")
        expect(waits).to_contain_text("is draining and takes nothing new")
        check(page)
    finally:
        cluster.client.resume_agent(second)
    expect(page.locator("[data-list=recent] li", has_text="has to wait here")).to_contain_text("exit code 0")
    cluster.client.wait(task.id)


def test_charts_say_what_they_show(pages: Pages, cluster: Cluster) -> None:
    page = pages.open(f"/agents/{cluster.agents[0]}")
    canvas = page.get_by_role("img", name=re.compile(r"^CPU, \d+%"))
    expect(canvas).to_be_visible()
    expect(page.locator("[data-chart=memory] [data-f=now]")).to_have_text(re.compile(r"[\d.]+ .iB"))
    lit = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"
    bright = canvas.evaluate(lit)
    page.emulate_media(color_scheme="dark")
    expect(page.get_by_role("img", name=re.compile(r"^CPU, \d+%"))).to_be_visible()
    assert page.get_by_role("img", name=re.compile(r"^CPU, \d+%")).evaluate(lit) != bright
    check(page)


def test_without_samples_a_chart_says_so(pages: Pages, cluster: Cluster) -> None:
    page = pages.context().new_page()
    page.route("**/samples", lambda route: route.fulfill(json={"interval_s": 15, "points": []}))
    page.goto(f"{pages.url}/agents/{cluster.agents[0]}")
    expect(page.locator("[data-chart=cpu]")).to_contain_text("Nothing is known of the last hour yet.")
    check(page)


def test_without_scripts(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/agents", scripts=False)
    expect(page.locator("#add")).to_be_hidden()
    page.get_by_role("button", name="Add a host").click()
    page.get_by_role("button", name="Create join command").click()
    expect(page.locator("#join-line")).to_contain_text("muster agent --join")
    page.goto(f"{pages.url}/agents")
    page.get_by_role("button", name="conflict").click()
    expect(page.locator("#none")).to_contain_text("No agents match")
    page.get_by_role("searchbox").press("Enter")
    expect(page).to_have_url(re.compile(r"state=conflict&q=$"))
    page.goto(f"{pages.url}/agents/{cluster.agents[1]}")
    page.get_by_role("button", name="Drain").click()
    expect(page.locator("h1 .badge")).to_have_text("draining")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1 .badge")).to_have_text("online")
