"""The pages before logging in, in every form they have, and the way in."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.browser import LANGUAGES, Language, Pages, check, check_forms


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pages_before_logging_in(strangers_pages: Pages, language: Language) -> None:
    page = strangers_pages.open("/login", language=language, logged_in=False)
    check_forms(page)
    expect(page.locator("html")).to_have_attribute("lang", {"en": "en", "zh-CN": "zh-Hans-CN"}[language])
    page.goto(strangers_pages.login_link())
    expect(page.locator("main form button[type=submit].main")).to_be_visible()
    check_forms(page)


def test_a_link_logs_in_once(strangers_pages: Pages) -> None:
    page = strangers_pages.context(logged_in=False).new_page()
    link = strangers_pages.login_link()
    strangers_pages.log_in(page, link)
    other = strangers_pages.context(logged_in=False).new_page()
    strangers_pages.allow("status of 403")
    other.goto(link)
    other.locator("main form button[type=submit].main").click()
    expect(other.locator("main")).to_contain_text("used")
    check(other)
