"""Pages in a real browser, watched: whatever a page complains about fails the test.

    def test_home(pages):                                       # the fixture of tests/browser/conftest.py
        page = pages.open("/", width=390, theme="dark", language="zh-CN")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        check(page)                                             # axe, and nothing wider than the screen

Watched are errors and warnings on the console (broken rules of the content policy among them), exceptions, requests
that fail, and every request to another place than the server. `pages.allow("pattern")` permits what a test provokes.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urljoin, urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    StorageState,
    WebError,
    expect,
    sync_playwright,
)

from tests.support.chromium import FLAGS, chromium

Theme = Literal["light", "dark"]
Language = Literal["en", "zh-CN"]
WIDTHS: Final = (1440, 390)
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh-CN")
HEIGHTS: Final = {1440: 900, 390: 844}
LOCALES: Final = {"en": "en-US", "zh-CN": "zh-CN"}
# A shared machine stalls now and then. Nothing here is a measurement.
PATIENCE_MS: Final = 20_000
AXE: Final = Path(__file__).parents[1] / "data" / "axe" / "axe.min.js"
AXE_RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")

_AXE_RUN: Final = """async tags => {
    const found = await axe.run(document, {runOnly: {type: "tag", values: tags}, resultTypes: ["violations"]});
    return found.violations.map(one => ({
        id: one.id, help: one.help, places: one.nodes.map(node => [node.target.join(" "), node.failureSummary]),
    }));
}"""
# What is too wide for the screen, and text that is cut off and cannot be read in any other way.
_MISFITS: Final = r"""() => {
    const root = document.scrollingElement, wide = innerWidth, found = [];
    const start = e => e.cloneNode(false).outerHTML.replace(/<\/.*/, "").slice(0, 200);
    const say = (what, e) => found.push(`${what}: ${start(e)} ${e.textContent.trim().slice(0, 60)}`);
    const scrolls = e => { for (let p = e.parentElement; p && p !== root; p = p.parentElement)
        if (getComputedStyle(p).overflowX !== "visible") return true; return false; };
    if (root.scrollWidth > wide) {
        found.push(`the page is ${root.scrollWidth} px wide, the screen ${wide} px`);
        for (const e of document.body.querySelectorAll("*"))
            if (e.getBoundingClientRect().right > wide + 1 && !scrolls(e)) say("reaches out of the screen", e);
    }
    for (const e of document.body.querySelectorAll("*")) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        const hides = ["hidden", "clip"].includes(getComputedStyle(e).overflowX);
        const cut = hides && e.clientWidth > 2 && e.scrollWidth > e.clientWidth + 1;
        if (own && cut && !e.closest("[title],[aria-label]"))
            say("its text is cut off and it has no title", e);
    }
    return found.slice(0, 20);
}"""


@contextmanager
def browser_started() -> Iterator[Browser]:
    """A running Chromium. Within one thread there can be only one at a time."""
    found = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.path, args=FLAGS, env={**os.environ, **found.environ}, timeout=60_000
        )
        try:
            yield browser
        finally:
            browser.close()


class Pages:
    """Opens pages of one server, each in a browser profile of its own, and keeps what they complain about.

    `token` (the administrator's) serves to log in, once; the session is shared by all pages that are `logged_in`.
    """

    def __init__(self, browser: Browser, url: str, token: str, *, session: StorageState | None = None) -> None:
        self.url = url
        self.token = token
        self.complaints: list[str] = []
        self._browser = browser
        self._allowed: list[str] = []
        self._contexts: list[BrowserContext] = []
        self._session = session

    def open(
        self,
        path: str,
        *,
        width: int = 1440,
        theme: Theme = "light",
        language: Language = "en",
        logged_in: bool = True,
        scripts: bool = True,
    ) -> Page:
        """The loaded page at `path`; without `scripts`, as a browser shows it that runs none."""
        context = self.context(width=width, theme=theme, language=language, logged_in=logged_in, scripts=scripts)
        page = context.new_page()
        page.goto(urljoin(self.url, path), wait_until="load")
        return page

    def context(
        self,
        *,
        width: int = 1440,
        theme: Theme = "light",
        language: Language = "en",
        logged_in: bool = True,
        scripts: bool = True,
    ) -> BrowserContext:
        """A fresh browser profile, for several pages (tabs) that share their cookies."""
        context = self._browser.new_context(
            viewport={"width": width, "height": HEIGHTS.get(width, 900)},
            color_scheme=theme,
            locale=LOCALES[language],
            timezone_id="Asia/Shanghai",  # never the server's, so that who mixes them up is found out
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
            java_script_enabled=scripts,
            storage_state=self.session() if logged_in else None,
        )
        context.set_default_timeout(PATIENCE_MS)
        self._watch(context)
        self._contexts.append(context)
        return context

    def session(self) -> StorageState:
        """Cookies of a browser that is logged in; logs in when called first."""
        if self._session is None:
            context = self.context(logged_in=False)
            self.log_in(context.new_page())
            self._session = context.storage_state()
            context.close()
            self._contexts.remove(context)
        return self._session

    def log_in(self, page: Page, link: str | None = None) -> None:
        """Log a browser in as a person does: through a login link, a fresh one by default, and its button."""
        page.goto(link or self.login_link(), wait_until="load")
        page.locator("main form button[type=submit].main").click()
        page.wait_for_url(f"{self.url}/")

    def login_link(self) -> str:
        """A fresh one-time address, as `muster login` prints it."""
        asked = urllib.request.Request(f"{self.url}/api/v1/login-links", data=b"{}", method="POST")
        asked.add_header("Authorization", f"Bearer {self.token}")
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked, timeout=30) as answer:
            link: str = json.load(answer)["url"]
        return urljoin(self.url, link)

    def allow(self, *patterns: str) -> None:
        """Complaints in which one of these regular expressions is found are what the test wants."""
        self._allowed += patterns

    def done(self) -> None:
        """Close all pages, and fail on what they complained about."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        left = [one for one in self.complaints if not any(re.search(pattern, one) for pattern in self._allowed)]
        assert not left, "the pages complained:\n" + "\n".join(dict.fromkeys(left))

    def describe(self) -> str:
        """What the open pages show, as text, for who has only the log of a failed test."""
        shown = []
        for page in (page for context in self._contexts for page in context.pages):
            tree = page.locator("body").aria_snapshot(timeout=3_000).splitlines()
            shown += [f"--- {page.url}", *tree[:80]]
        return "\n".join([*shown, *self.complaints])

    def _watch(self, context: BrowserContext) -> None:
        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                place = message.location
                self.complaints.append(f"console {message.type}: {message.text} ({place['url']}:{place['lineNumber']})")

        def asked(request: Request) -> None:
            if urlsplit(request.url).scheme not in ("data", "blob") and not f"{request.url}/".startswith(
                f"{self.url}/"
            ):
                self.complaints.append(f"request to another place: {request.url}")

        def failed(request: Request) -> None:
            if request.failure != "net::ERR_ABORTED":  # that is the page leaving, or ending its event stream
                self.complaints.append(f"failed request: {request.method} {request.url} ({request.failure})")

        def thrown(error: WebError) -> None:
            self.complaints.append(f"exception: {error.error} ({error.page.url if error.page else 'no page'})")

        context.on("console", said)
        context.on("weberror", thrown)
        context.on("request", asked)
        context.on("requestfailed", failed)


def check(page: Page) -> None:
    """What holds for every page: accessible, and nothing wider than the screen."""
    assert_fits(page)
    assert_accessible(page)


def check_forms(page: Page) -> None:
    """`check` in both widths and themes, one after the other; the page stays as it is, and goes back to its width."""
    before = page.viewport_size
    for width, theme in product(WIDTHS, THEMES):
        page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
        page.emulate_media(color_scheme=theme)
        try:
            check(page)
        except AssertionError as error:
            raise AssertionError(f"at {width} px, {theme}: {error}") from error
    if before is not None:
        page.set_viewport_size(before)


def assert_accessible(page: Page) -> None:
    """No violation of the rules of axe."""
    page.evaluate(AXE.read_text("utf-8"))
    found: list[dict[str, Any]] = page.evaluate(_AXE_RUN, list(AXE_RULES))
    lines = [f"{one['id']}: {one['help']}\n" + "\n".join(_place(place) for place in one["places"]) for one in found]
    assert not lines, f"axe finds on {page.url}:\n" + "\n".join(lines)


def assert_fits(page: Page) -> None:
    """No scrolling sideways, and no text that is cut off without a title."""
    found: list[str] = page.evaluate(_MISFITS)
    assert not found, f"{page.url} does not fit:\n" + "\n".join(found)


def _place(place: list[str]) -> str:
    target, summary = place
    return f"    {target}\n" + "\n".join(f"        {line.strip()}" for line in summary.splitlines())


expect.set_options(timeout=PATIENCE_MS)
