"""The page about the API, in the browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Language, Pages, Theme, check
from webserver.examples import EXAMPLES

DOCS = "/api/v1/docs"


def visible_calls(page: Page) -> list[str]:
    """The ids of the calls that are shown."""
    shown = page.locator(".call[data-words]:visible")
    return [str(shown.nth(n).get_attribute("id")) for n in range(shown.count())]


def test_calls_are_found_linked_and_copied(pages: Pages) -> None:
    page = pages.open(DOCS)
    expect(page.get_by_role("heading", level=1)).to_have_text("API")
    assert set(visible_calls(page)) == set(EXAMPLES)
    page.keyboard.press("/")
    page.keyboard.type("post AGENTS /drain")
    expect(page.locator(".chapter[data-chapter]:visible")).to_have_count(1)
    assert visible_calls(page) == ["drain_agent"]
    expect(page.get_by_role("navigation", name="Contents").get_by_role("link", name="Drain an agent")).to_be_visible()
    expect(page.locator("#found")).to_have_text("1 call")
    page.locator("#drain_agent").get_by_role("button", name="Copy").click()
    expect(page.locator("#notices")).to_contain_text("Copied.")
    page.get_by_role("searchbox").fill("nothing of this kind")
    expect(page.get_by_text("No call has all these words.")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="Submit a task").click()
    expect(page).to_have_url(re.compile("#submit$"))
    expect(page.locator("#submit")).to_be_in_viewport()
    check(page)


def test_answers_and_errors_unfold(pages: Pages) -> None:
    call = pages.open(f"{DOCS}#list_tasks").locator("#list_tasks")
    call.get_by_text("Fields of TaskPage").click()
    expect(call.get_by_role("rowheader", name="items[].waiting_because")).to_be_visible()
    call.locator("summary", has_text="Errors").click()
    call.get_by_role("link", name="invalid_request").click()
    expect(call.page.locator("#error-invalid_request")).to_be_in_viewport()
    check(call.page)


@pytest.mark.parametrize(("theme", "language"), [("dark", "zh-CN"), ("light", "en")])
def test_a_narrow_screen_folds_the_contents(pages: Pages, theme: Theme, language: Language) -> None:
    page = pages.open(DOCS, width=390, theme=theme, language=language)
    contents = page.locator(".narrow-contents")
    expect(contents.get_by_role("link").first).to_be_hidden()
    contents.locator("summary").click()
    check(page)
    contents.locator("a[href='#read_output']").click()
    expect(page.locator("#read_output")).to_be_in_viewport()
    expect(contents.get_by_role("link").first).to_be_hidden()
    assert page.locator("#read_output .summary").get_attribute("lang") == "en"
    check(page)


def test_the_page_is_whole_without_scripts(pages: Pages) -> None:
    page = pages.open(DOCS, scripts=False)
    expect(page.get_by_role("searchbox")).to_be_hidden()
    assert set(visible_calls(page)) == set(EXAMPLES)
    page.locator("#get_task details").first.locator("summary").click()
    expect(page.locator("#get_task").get_by_role("rowheader", name="script_sha256")).to_be_visible()


def test_a_stranger_is_shown_the_way_in_first(strangers_pages: Pages) -> None:
    page = strangers_pages.open(DOCS, logged_in=False)
    expect(page).to_have_url(re.compile(r"/login\?next=%2Fapi%2Fv1%2Fdocs"))
