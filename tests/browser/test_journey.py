"""One person's way through all pages, from the login link to the language switch, by mouse and keyboard as it comes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Pages, check
from tests.support.cluster import Cluster, muster
from tests.support.processes import Spawned

HOST = "journey-host"
SCRIPT = """echo "begun on $(hostname), attempt $MUSTER_ATTEMPT"
while ! [ -e "$GATE" ]; do sleep 0.1; done
echo "the gate is open" >&2
"""
FAILS_ONCE = '[ "$MUSTER_ATTEMPT" -gt 1 ] && echo mended || { echo "not yet" >&2; exit 4; }\n'


@pytest.fixture
def host(cluster: Cluster) -> Iterator[list[Spawned]]:
    """The agent that the person adds; gone afterwards."""
    started: list[Spawned] = []
    yield started
    for agent in started:
        agent.send()
        agent.wait()
        cluster.wait_agent(HOST, "offline")
        cluster.client.forget_agent(HOST)


def is_live(page: Page) -> None:
    expect(page.locator("#live")).to_have_attribute("data-state", "open")


def write_script(page: Page, text: str) -> None:
    page.locator("#editor .cm-content").click()
    page.keyboard.insert_text(text)


def choose(page: Page, *names: str) -> None:
    for name in names:
        page.locator("#hosts .host", has_text=name).first.get_by_role("checkbox").check()


def test_from_the_login_link_to_the_language(strangers_pages: Pages, cluster: Cluster, host: list[Spawned]) -> None:
    page = strangers_pages.context(logged_in=False).new_page()
    page.goto(f"{cluster.url}/agents")
    expect(page).to_have_url(re.compile(r"/login\?next=%2Fagents"))
    strangers_pages.log_in(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")

    # A host is added with the line that the page shows.
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Agents").click()
    page.get_by_role("button", name="Add a host").click()
    page.get_by_role("button", name="Create join command").click()
    line = page.locator("#join code").first.text_content() or ""
    words = shlex.split(line)
    state = cluster.path / HOST
    command = muster(*words[1:], "--state", str(state), "--name", HOST)
    host.append(Spawned(command, environ=cluster.environ, mark=cluster.mark))
    expect(page.locator("#arrival")).to_contain_text(f"{HOST} has joined")

    # A script goes to three hosts, the plan is said before, and its output is seen while it runs.
    gate = cluster.path / "gate"
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Submit").click()
    write_script(page, SCRIPT)
    choose(page, HOST, *cluster.agents[:2])
    page.get_by_role("textbox", name="Name of the task").fill("journey")
    page.locator("input[name=env_name]").first.fill("GATE")
    page.locator("[name=env_value]").first.fill(str(gate))
    expect(page.locator("#plan")).to_contain_text("3 hosts")
    check(page)
    page.locator("#send").click()
    page.wait_for_url("**/tasks/*")
    is_live(page)
    expect(page.locator(".run")).to_have_count(3)
    page.locator(".run", has_text=HOST).locator(".open").click()
    expect(page.locator("#panel")).to_contain_text("begun on")

    # One run is cancelled, the others end when they may.
    page.locator(".run", has_text=HOST).get_by_role("button", name="Cancel this run").click()
    page.get_by_role("dialog").get_by_role("button", name="Yes").click()
    expect(page.locator("#panel header .badge")).to_have_text("cancelled")
    gate.touch()
    expect(page.locator(".about .badge")).to_have_text("failed")
    check(page)

    # Another fails on every host; the main button repeats it, and it is mended.
    page.goto(f"{cluster.url}/submit")
    write_script(page, FAILS_ONCE)
    choose(page, HOST, cluster.agents[0])
    page.get_by_role("textbox", name="Name of the task").fill("journey that fails once")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/tasks/*")
    expect(page.locator(".about .badge")).to_have_text("failed")
    expect(page.locator("#groups")).to_contain_text("exit code 4")
    page.get_by_role("button", name="Retry failed").click()
    expect(page.locator(".about .badge")).to_have_text("succeeded")
    expect(page.get_by_role("button", name="Retry failed")).to_be_hidden()

    # It is found again by its name and state.
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Tasks").click()
    page.get_by_placeholder("Name").fill("journey")
    expect(page.locator("[data-list=tasks] li")).to_have_count(2)
    page.get_by_role("button", name="succeeded", exact=True).click()
    expect(page.locator("[data-list=tasks] li")).to_have_count(1)
    expect(page.locator("[data-list=tasks]")).to_contain_text("fails once")

    # The new host is drained and put back.
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Agents").click()
    page.get_by_role("link", name=HOST, exact=True).click()
    page.get_by_role("button", name="Drain").click()
    expect(page.locator("h1 .badge")).to_have_text("draining")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1 .badge")).to_have_text("online")

    # In Chinese, and out.
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans-CN")
    expect(page.locator("h1 .badge")).to_have_text("在线")
    check(page)
    page.locator("form[action='/logout'] button").click()
    expect(page).to_have_url(f"{cluster.url}/login")
    page.goto(f"{cluster.url}/tasks")
    expect(page).to_have_url(re.compile("/login"))
