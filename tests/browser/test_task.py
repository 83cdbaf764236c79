"""The page of a task in a browser: groups, one run in detail, actions that the page follows live."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from muster.client import Task
from tests.support.browser import THEMES, WIDTHS, Pages, Theme, check
from tests.support.cluster import Cluster

TWO_WAYS = """#!/bin/sh
echo "hello from a host"
case "$MUSTER_RUN_ID" in *[0-7]) echo oh no >&2; exit 3 ;; *) kill -9 $$ ;; esac
"""
MENDED = '#!/bin/sh\necho try $MUSTER_ATTEMPT\n[ "$MUSTER_ATTEMPT" -gt 1 ]\n'
LONG = "#!/bin/sh\necho at work\nsleep 300\n"


def groups(page: Page, state: str) -> list[str]:
    """How many runs each group of this state has."""
    return page.locator(f"#groups summary:has(.badge.s-{state}) .count [data-f=count]").all_inner_texts()


@pytest.fixture(scope="module")
def failed(cluster: Cluster) -> Task:
    """A task that failed everywhere."""
    return cluster.run(TWO_WAYS, targets=cluster.agents, name="Fails in two ways", args=["one", "two words"])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", THEMES)
def test_a_failed_task_in_every_form(pages: Pages, failed: Task, width: int, theme: Theme) -> None:
    page = pages.open(f"/tasks/{failed.id}", width=width, theme=theme)
    expect(page).to_have_title("failed · Fails in two ways · muster")
    expect(page.get_by_role("button", name="Retry failed")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.locator(".run")).to_have_count(3)
    page.locator(".run .open").first.click()
    panel = page.locator("#panel")
    expect(panel.locator(".sentence")).to_contain_text(re.compile("exit code 3|SIGKILL"))
    expect(panel.get_by_text("hello from a host")).to_be_visible()
    panel.get_by_text("Timeline").click()
    expect(panel.locator(".timeline li")).to_have_count(3)
    page.get_by_text("Script and request").click()
    expect(page.get_by_label("Script", exact=True)).to_contain_text("echo oh no")
    expect(page.locator(".request")).to_contain_text("two words")
    check(page)


def test_a_line_of_a_runs_output_has_an_address(pages: Pages, cluster: Cluster) -> None:
    task = cluster.run("seq 1 500", targets=cluster.agents[:1])
    run = next(iter(cluster.client.runs(task.id)))
    page = pages.open(f"/tasks/{task.id}#run={run.id}&line=400")
    expect(page.locator("#panel .log-row", has_text="400").first).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#panel")).to_be_hidden()
    assert page.evaluate("location.hash") == ""
    page.goto(f"{pages.url}/runs/{run.id[:30]}")
    expect(page.locator("#panel-heading")).to_have_text(cluster.agents[0])


def test_a_task_is_watched_and_cancelled(pages: Pages, cluster: Cluster) -> None:
    task = cluster.start_script(LONG, targets=cluster.agents, name="Watched")
    page = pages.open(f"/tasks/{task.id}")
    expect(page.locator(".about .badge")).to_have_text("running")
    page.locator(".run .open").first.click()
    expect(page.locator("#panel").get_by_text("at work")).to_be_visible()
    page.locator(".run").first.get_by_role("button", name="Cancel this run").click()
    page.get_by_role("dialog").get_by_role("button", name="Yes").click()
    expect(page.locator("#panel header .badge")).to_have_text("cancelled")
    expect(page.locator("#panel .timeline")).to_contain_text("SIGTERM to")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("2 running scripts get TERM, then KILL after 1 s.")
    check(page)
    page.get_by_role("button", name="Cancel the task").click()
    expect(page).to_have_title("cancelled · Watched · muster")
    expect(page.locator("#told")).to_contain_text("Cancelled by admin.")
    expect(page.locator("form[data-action=cancel]")).to_be_hidden()
    expect(page.locator("#panel")).to_be_visible()  # nothing was loaded anew
    assert groups(page, "cancelled") == ["3"]


def test_failed_runs_are_tried_again(pages: Pages, cluster: Cluster) -> None:
    task = cluster.run(MENDED, targets=cluster.agents, name="Mended")
    page = pages.open(f"/tasks/{task.id}", width=390)
    page.locator(".run .open").first.click()
    expect(page.locator("#panel").get_by_text("try 1")).to_be_visible()
    page.get_by_role("button", name="Retry failed 3").click()
    expect(page).to_have_title("succeeded · Mended · muster")
    expect(page.locator("#notices")).to_contain_text("begins again")
    expect(page.get_by_role("button", name="Retry failed")).to_have_count(0)
    expect(page.locator("#panel").get_by_text("try 2")).to_be_visible()
    page.locator("#panel").get_by_role("button", name="Attempt 1").click()
    expect(page.locator("#panel").get_by_text("try 1")).to_be_visible()
    expect(page.locator("#panel .sentence")).to_contain_text("exit code 1")
    check(page)


def test_paused_and_waiting_runs_say_why(pages: Pages, cluster: Cluster) -> None:
    task = cluster.client.submit(LONG, targets=cluster.agents, parallel=1, name="Paused")
    page = pages.open(f"/tasks/{task.id}", theme="dark")
    page.get_by_role("button", name="Pause").click()
    expect(page).to_have_title("paused · Paused · muster")
    expect(page.locator("#told")).to_contain_text("the task is paused")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.locator("#told")).to_contain_text("2 runs wait: the task is paused")
    expect(page.locator(".run .what", has_text="the task is paused")).to_have_count(2)
    page.locator(".run .open", has_text="Details").first.click()
    expect(page.locator("#panel [data-f=waits]")).to_contain_text("the task is paused")
    expect(page.locator("#panel .sentence")).to_have_text("It has not begun.")
    check(page)
    cluster.client.cancel(task.id)
    expect(page.locator("#panel .sentence")).to_have_text("Cancelled before it began.")


def test_outputs_are_merged(pages: Pages, failed: Task) -> None:
    page = pages.open(f"/tasks/{failed.id}")
    page.get_by_role("button", name="Merged output").click()
    expect(page.locator("#panel .log-row", has_text="hello from a host")).to_have_count(3)
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()


def test_without_scripts_the_groups_and_forms_are_there(pages: Pages, failed: Task) -> None:
    page = pages.open(f"/tasks/{failed.id}", scripts=False)
    expect(page.locator("#groups summary").first).to_contain_text("failed")
    page.locator("#groups summary").first.click()
    expect(page.get_by_role("button", name="Retry failed")).to_be_visible()


def test_an_unknown_task_is_a_page_that_says_so(pages: Pages) -> None:
    pages.allow("status of 404")
    page = pages.open("/tasks/00000000-0000-0000-0000-000000000000")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    check(page)


def test_a_press_too_many_starts_nothing(pages: Pages, cluster: Cluster) -> None:
    task = cluster.client.submit(LONG, targets=cluster.agents[:2], parallel=1, name="Pressed twice")
    page = pages.open(f"/tasks/{task.id}")
    expect(page.locator("#turn")).to_have_text("1 at a time; 1 more waits for its turn")
    expect(page.locator(".run", has_text="waits for its turn")).to_have_count(1)
    expect(page.locator("#told > *")).to_have_count(0)
    # The place of what may be done stays, whatever takes it.
    left = page.locator("form[data-action=cancel]").bounding_box()
    page.evaluate(
        """() => new MutationObserver(() => {
            const button = document.querySelector("form[data-action=retry_failed]:not([hidden]) button");
            if (button && !window.pressed) { window.pressed = button.ariaDisabled; button.click(); }
        }).observe(document.getElementById("actions"), {subtree: true, attributes: true})"""
    )
    page.get_by_role("button", name="Cancel", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel the task").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_title("cancelled · Pressed twice · muster")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("window.pressed") == "true"
    retry = page.get_by_role("button", name="Run the remaining 2")
    expect(retry).to_be_enabled()
    assert cluster.client.task(task.id).state == "cancelled"
    assert page.locator("form[data-action=retry_all]").bounding_box() == left
    expect(page.locator("[data-f=duration] time")).to_have_count(0)
    expect(page.locator(".run", has_text="never began: it was cancelled before")).to_have_count(1)


def test_a_counter_that_says_the_end_already_stops(pages: Pages, failed: Task) -> None:
    page = pages.open(f"/tasks/{failed.id}")
    left = page.evaluate(
        """async () => {
            const script = document.querySelector("script[src*='js/task.js']").src;
            const { setText, time } = await import(script.replace("task.js", "view.js"));
            const slot = document.createElement("span");
            slot.append(time(new Date(Date.now() - 20_000).toISOString(), "since"));
            setText(slot, slot.textContent);
            return slot.innerHTML;
        }"""
    )
    assert "<" not in left and left.startswith("20")


def test_the_only_run_is_open_from_the_start(pages: Pages, cluster: Cluster) -> None:
    task = cluster.run("echo alone", targets=cluster.agents[:1])
    page = pages.open(f"/tasks/{task.id}", width=390)
    expect(page.locator("#panel").get_by_text("alone")).to_be_visible()
    expect(page.locator("#panel-heading")).not_to_be_focused()
    expect(page.get_by_role("button", name="Merged output")).to_be_hidden()
    assert page.evaluate("scrollY") == 0
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#panel")).to_be_hidden()
    check(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_leads_to_the_output_and_the_focus_with_it(pages: Pages, failed: Task, width: int) -> None:
    page = pages.open(f"/tasks/{failed.id}", width=width)
    page.locator(".run [data-f=agent]").first.click()
    expect(page.locator("#panel-heading")).to_be_focused()
    expect(page.locator("#panel-heading")).to_be_in_viewport()
    # Nor does the bar on top cover it.
    page.locator("#panel-heading").evaluate(
        """(e) => {
            const { left, top } = e.getBoundingClientRect();
            if (!e.contains(document.elementFromPoint(left + 5, top + 5))) throw new Error("covered");
        }"""
    )
    page.keyboard.press("Escape")
    expect(page.locator(".run .open").first).to_be_focused()
    page.get_by_role("button", name="Merged output").press("Enter")
    expect(page.locator("#panel-heading")).to_be_focused()
    expect(page.locator("#panel-heading")).to_have_text("Merged output by host")
    expect(page.locator("#panel-heading")).to_be_in_viewport()


def test_what_a_draining_host_holds_up_is_said_and_led_to(pages: Pages, cluster: Cluster) -> None:
    first, second = cluster.agents[:2]
    cluster.client.drain_agent(second)
    try:
        task = cluster.client.submit("true", targets=[first, second], name="Half held up")
        page = pages.open(f"/tasks/{task.id}")
        said = f"Nothing runs now; 1 run waits: {second} is draining and takes nothing new"
        expect(page.locator("#told")).to_contain_text(said)
        expect(page.locator(".about .badge")).to_have_text("running")
        expect(page.locator("#legend")).to_contain_text("1 waiting")
        page.get_by_role("link", name=f"Resume {second} on its page").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(second)
    finally:
        cluster.client.resume_agent(second)
        cluster.client.wait(task.id)


def test_groups_are_taken_over_and_kept_by_filters(pages: Pages, cluster: Cluster) -> None:
    task = cluster.run("echo $MUSTER_RUN_ID", targets=cluster.agents, name="Unlike")
    page = pages.context().new_page()
    held: list[Route] = []
    page.route("**/events?output=false", lambda route: held.append(route))  # a person is faster than the script
    page.goto(f"{pages.url}/tasks/{task.id}")
    group = page.locator("#groups details")
    group.locator("summary").press("Enter")
    page.evaluate("window.before = document.querySelector('#groups > li')")
    held[0].continue_()
    expect(page.locator(".run")).to_have_count(3)
    expect(group.locator("summary")).to_be_focused()
    assert page.evaluate("window.before === document.querySelector('#groups > li')")
    expect(group).to_contain_text("open two hosts, in a tab each, to compare")

    def narrow(name: str) -> None:
        # With so few hosts the filter is not shown.
        page.locator("#by-name").evaluate("(e, name) => { e.value = name; e.dispatchEvent(new Event('input')); }", name)

    narrow("nobody")
    expect(group).to_have_count(0)
    narrow(cluster.agents[0])
    expect(page.locator(".run")).to_have_count(1)
    expect(group).to_contain_text("outputs differ")
    group.locator("summary").press("Enter")
    narrow("")
    expect(page.locator("#groups [data-f=count]")).to_have_text("3")
    assert page.evaluate("window.before === document.querySelector('#groups > li') && !window.before.firstChild.open")


def test_why_it_waits_follows_the_agents(pages: Pages, cluster: Cluster) -> None:
    agent = cluster.agents[2]
    slots = cluster.client.agent(agent).slots
    cluster.client.patch_agent(agent, slots=1)
    holds = cluster.start_script(LONG, targets=[agent], name="Holds the slot")
    task = cluster.client.submit("true", targets=[agent, cluster.agents[0]], name="Waits for one")
    try:
        page = pages.context().new_page()
        page.clock.install()
        page.goto(f"{pages.url}/tasks/{task.id}")
        expect(page.locator("#told")).to_contain_text(f"{agent} is busy: 1 of 1 slots are held")
        expect(page.locator(".run .what", has_text="busy")).to_have_count(1)
        cluster.client.drain_agent(agent)
        page.clock.fast_forward(11_000)
        expect(page.locator("#told")).to_contain_text(f"{agent} is draining and takes nothing new")
        expect(page.locator(".run .what", has_text="draining")).to_have_count(1)
    finally:
        cluster.client.patch_agent(agent, slots=slots)
        cluster.client.cancel(holds.id)
        cluster.client.resume_agent(agent)
        cluster.client.wait(task.id)
