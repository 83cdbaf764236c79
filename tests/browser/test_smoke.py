"""The browser reaches the server, and what it complains about is noticed."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import expect

from tests.support.browser import Pages, assert_accessible, assert_fits

Event = Literal["console", "weberror", "request"]


def test_the_browser_shows_what_the_server_says(strangers_pages: Pages) -> None:
    page = strangers_pages.open("/healthz", logged_in=False, language="zh-CN", theme="dark", width=390)
    expect(page.locator("body")).to_contain_text("ok")
    assert page.evaluate("[navigator.language, innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]") == [
        "zh-CN",
        390,
        True,
    ]
    assert_fits(page)


@pytest.mark.parametrize(
    ("provoke", "event", "complaint"),
    [
        ("console.error('something is wrong')", "console", "console error: something is wrong"),
        ("setTimeout(() => { throw Error('thrown') })", "weberror", "exception: .*thrown"),
        ("open('http://127.0.0.2:5999/')", "request", "request to another place: http://127.0.0.2:5999/"),
        ("fetch('/healthz').catch(() => 0)", "console", "violates the following Content Security Policy"),
        ("location.pathname = '/no/such/page'", "console", "status of 404"),
    ],
)
def test_complaints_are_noticed(strangers_pages: Pages, provoke: str, event: Event, complaint: str) -> None:
    page = strangers_pages.open("/healthz", logged_in=False)
    with page.context.expect_event(event):
        page.evaluate(f"() => {{ {provoke} }}")
    with pytest.raises(AssertionError, match=complaint):
        strangers_pages.done()
    strangers_pages.allow(complaint, "failed request", "Refused to connect")


def test_what_does_not_fit_is_noticed(strangers_pages: Pages) -> None:
    page = strangers_pages.open("/healthz", logged_in=False, width=390)
    page.evaluate(
        """() => {
            const wide = document.body.appendChild(document.createElement("pre"));
            wide.textContent = "wide ".repeat(200);
            wide.style.whiteSpace = "pre";
        }"""
    )
    with pytest.raises(AssertionError, match=r"the page is \d+ px wide, the screen 390 px"):
        assert_fits(page)


def test_what_not_everybody_can_use_is_noticed(strangers_pages: Pages) -> None:
    page = strangers_pages.open("/login", logged_in=False)
    page.evaluate("() => { document.querySelector('main').append(document.createElement('button')) }")
    with pytest.raises(AssertionError, match="button-name: Buttons must have discernible text"):
        assert_accessible(page)
