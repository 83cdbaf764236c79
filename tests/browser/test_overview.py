"""The overview and the list of tasks: what happens is seen without a reload, and every form of the pages is sound."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import LANGUAGES, Language, Pages, check, check_forms
from tests.support.cluster import Cluster


def row(page: Page, where: str, name: str) -> Locator:
    return page.locator(f'[data-list="{where}"] li', has=page.get_by_role("link", name=name, exact=True))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("path", ["/", "/tasks", "/tokens", "/nowhere"])
def test_every_form(pages: Pages, path: str, language: Language) -> None:
    if path == "/nowhere":
        pages.allow("status of 404")
    page = pages.open(path, language=language)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    check_forms(page)


def test_a_task_is_seen_from_submit_to_end(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/")
    expect(page.locator("#live")).to_have_attribute("data-state", "open")
    task = cluster.client.submit("exit 3", count=1, name="overview one")
    expect(row(page, "ended", "overview one")).to_be_visible()
    expect(row(page, "ended", "overview one")).to_contain_text("failed")
    expect(page.locator("#attention")).to_contain_text("overview one")
    expect(row(page, "running", "overview one")).to_have_count(0)
    cluster.client.wait(cluster.client.retry(task.id).id)


def test_what_waits_says_why(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/")
    agent = cluster.agents[0]
    cluster.client.drain_agent(agent)
    try:
        task = cluster.client.submit("true", name="waits for a drained one", targets=[agent])
        expect(row(page, "waiting", "waits for a drained one")).to_contain_text("is draining and takes nothing new")
        expect(page.locator("#fleet")).to_contain_text("1 draining")
    finally:
        cluster.client.resume_agent(agent)
    expect(row(page, "waiting", "waits for a drained one")).to_have_count(0)
    cluster.client.wait(task.id)


def test_what_had_no_room_comes_when_there_is_some(pages: Pages, cluster: Cluster) -> None:
    agent = cluster.agents[0]
    cluster.client.drain_agent(agent)
    try:
        tasks = [cluster.client.submit("true", name=f"room {n}", targets=[agent]) for n in range(23)]
        page = pages.open("/")
        expect(page.locator("[data-count=waiting]")).to_have_text("20+")
        expect(page.locator("#live")).to_have_attribute("data-state", "open")
        for task in tasks[-5:]:
            cluster.client.cancel(task.id)
        expect(page.locator("[data-count=waiting]")).to_have_text("18")
        expect(page.locator("[data-list=waiting] li").last).to_contain_text("room 0")
        for task in tasks[:-5]:
            cluster.client.cancel(task.id)
        expect(page.locator("[data-count=waiting]")).to_have_text("0")
    finally:
        cluster.client.resume_agent(agent)


def test_the_list_is_filtered_and_grows(pages: Pages, cluster: Cluster) -> None:
    for number in range(3):
        cluster.run("true", count=1, name=f"list fine {number}")
    cluster.run("exit 1", count=1, name="list bad")
    page = pages.open("/tasks?name=list+")
    expect(page.locator("[data-list=tasks] li")).to_have_count(4)
    page.get_by_role("button", name="failed", exact=True).click()
    expect(page).to_have_url(re.compile("state=failed"))
    expect(page.locator("[data-list=tasks] li")).to_have_count(1)
    cluster.client.submit("exit 1", count=1, name="list bad two")
    expect(page.locator("[data-list=tasks] li")).to_have_count(2)
    cluster.client.submit("exit 1", count=1, name="another thing")
    cluster.client.submit("exit 1", count=1, name="list bad three")
    expect(page.locator("[data-list=tasks] li")).to_have_count(3)
    expect(page.locator("[data-list=tasks] li").first).to_contain_text("list bad three")
    page.get_by_placeholder("Name").fill("no such name anywhere")
    expect(page.get_by_text("No tasks match")).to_be_visible()
    check(page)


def test_agents_are_suggested_to_the_filter(pages: Pages, cluster: Cluster) -> None:
    agent = cluster.agents[0]
    cluster.run("true", targets=[agent], name="found by its agent")
    page = pages.open("/tasks")
    expect(page.locator(f'#agent-names option[value="{agent}"]')).to_have_count(1)
    page.get_by_placeholder("Agent").fill(agent[:-1])
    expect(page.get_by_text(f"No agent is called “{agent[:-1]}”")).to_be_visible()
    check(page)
    page.get_by_role("link", name=agent, exact=True).click()
    expect(page.locator("[data-list=tasks] li", has_text="found by its agent")).to_be_visible()
    expect(page.get_by_placeholder("Agent")).to_have_value(agent)


def test_back_from_a_filter_is_a_whole_page_again(pages: Pages) -> None:
    page = pages.open("/tasks", width=390)
    page.get_by_role("button", name="failed", exact=True).click()
    expect(page).to_have_url(re.compile("state=failed"))
    page.go_back()
    expect(page).to_have_url(f"{pages.url}/tasks")
    expect(page.get_by_role("button", name="all", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#live")).to_have_attribute("data-state", "open")
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="running", exact=True).click()
    expect(page.get_by_role("button", name="running", exact=True)).to_have_attribute("aria-pressed", "true")


def test_what_is_silent_stays_told_when_its_task_goes_on(pages: Pages) -> None:
    page = pages.open("/")
    left = page.evaluate(
        """async () => {
          const home = document.querySelector('script[src$="js/home.js"]').src;
          const { show, ofAgent } = await import(home.replace("home.js", "attention.js"));
          const list = document.createElement("ul");
          const item = document.getElementById("attention-item").content.firstElementChild.cloneNode(true);
          Object.assign(item.dataset, { code: "run_silent", task: "t", agent: "a" });
          list.append(item);
          show(list, "task", "t", "a task", "/tasks/t", null);
          const agent = { state: "offline", last_seen_at: null };
          show(list, "agent", "a", "an agent", "/agents/a", ofAgent(agent));
          const told = [...list.children].map((each) => each.dataset.code);
          show(list, "agent", "a", "an agent", "/agents/a", null);
          return [told, list.children.length];
        }"""
    )
    assert left == [["run_silent"], 0]


def test_pages_of_the_list(pages: Pages, cluster: Cluster) -> None:
    for number in range(53):
        cluster.client.submit("true", count=1, name=f"paged {number}")
    page = pages.open("/tasks?name=paged")
    expect(page.locator("[data-list=tasks] li")).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(page.locator("[data-list=tasks] li")).to_have_count(3)
    expect(page.locator("[data-list=tasks]")).to_contain_text("paged 0")
    page.get_by_role("link", name=re.compile("Newe")).click()
    expect(page.locator("[data-list=tasks] li")).to_have_count(50)


def test_a_hidden_page_closes_its_stream_and_catches_up(pages: Pages, cluster: Cluster) -> None:
    context = pages.context()
    page = context.new_page()
    page.goto(f"{cluster.url}/")
    expect(page.locator("#live")).to_have_attribute("data-state", "open")
    hide = "state => { Object.defineProperty(document, 'hidden', {value: state, configurable: true});"
    page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", True)
    expect(page.locator("#live")).to_have_attribute("data-state", "closed")
    cluster.run("exit 7", count=1, name="while nobody looked")
    page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", False)
    expect(row(page, "ended", "while nobody looked")).to_have_count(1)


def test_tokens_are_made_used_and_revoked(pages: Pages) -> None:
    page = pages.open("/tokens")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#name-fault")).to_be_visible()
    pages.allow("status of 422", "status of 409")
    page.get_by_label("Name of a new token").fill("browser test <b>x</b>")
    page.get_by_role("button", name="Create").click()
    secret = page.locator("#secret").text_content() or ""
    assert len(secret) > 30
    page.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    shown = page.get_by_role("row", name="browser test <b>x</b>")
    expect(shown).to_be_visible()
    page.get_by_role("button", name="Log in another browser").click()
    expect(page.locator("#link")).to_contain_text("/login/")
    expect(page.locator("#secret")).to_have_text(secret)  # it is shown nowhere else, so it stays
    check(page)
    answer = page.request.get(f"{pages.url}/api/v1/agents", headers={"Authorization": f"Bearer {secret}", "Cookie": ""})
    assert answer.status == 200
    shown.get_by_role("button").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.locator("#notices")).to_contain_text("Revoked")
    expect(shown).to_have_count(0)
    answer = page.request.get(f"{pages.url}/api/v1/agents", headers={"Authorization": f"Bearer {secret}", "Cookie": ""})
    assert answer.status == 401


def test_language_and_theme_are_chosen_and_kept(pages: Pages) -> None:
    page = pages.open("/tasks")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans-CN")
    expect(page).to_have_url(f"{pages.url}/tasks")
    page.locator("button[name=theme][value=dark]").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.goto(f"{pages.url}/")
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans-CN")
    check(page)


def test_a_page_whose_session_was_ended_says_so(pages: Pages, cluster: Cluster) -> None:
    page = pages.context(logged_in=False).new_page()
    pages.log_in(page, cluster.client.login_link(name="soon ended").url)
    expect(page.locator("#live")).to_have_attribute("data-state", "open")
    [session] = [token for token in cluster.client.tokens() if token.name == "soon ended"]
    cluster.client.revoke_token(session.id)
    pages.allow("status of 401", "EventSource")
    hide = "state => { Object.defineProperty(document, 'hidden', {value: state, configurable: true});"
    for hidden in (True, False):
        page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", hidden)
    expect(page.locator("#notices")).to_contain_text("You are logged out here")
    page.reload()
    expect(page).to_have_url(f"{pages.url}/login")


def test_a_button_that_could_not_reach_the_server_says_so(pages: Pages, cluster: Cluster) -> None:
    task = cluster.run("exit 1", count=1, name="retried without a network")
    page = pages.open(f"/tasks/{task.id}")
    expect(page.locator("#live")).to_have_attribute("data-state", "open")
    pages.allow("ERR_INTERNET_DISCONNECTED", "Failed to fetch", "htmx")
    page.context.set_offline(True)
    page.get_by_role("button", name="Retry failed").click()
    expect(page.locator("#notices")).to_contain_text("Nothing was done: the server cannot be reached.")
    page.context.set_offline(False)
    assert cluster.client.task(task.id).state == "failed"
