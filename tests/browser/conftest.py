"""One Chromium for all browser tests of a process, one cluster for each file; no gevent here, Playwright has a loop.

A test that stops or breaks daemons starts its own cluster and opens pages with `Pages(browser, cluster.url, …)`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from playwright.sync_api import Browser, StorageState

from tests.support.browser import Pages, browser_started
from tests.support.cluster import Cluster

_FAILED = pytest.StashKey[bool]()


def pytest_itemcollected(item: pytest.Item) -> None:
    # The first one may have to fetch the browser, which counts for nothing.
    item.add_marker(pytest.mark.timeout(180, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A running Chromium; gone before tests of other folders run in this process."""
    with browser_started() as browser:
        yield browser


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real `muster up` with three agents, shared by the tests of a file: each names its things with care."""
    with Cluster(tmp_path_factory.mktemp("browser") / "m", agents=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def session(browser: Browser, cluster: Cluster) -> StorageState:
    """The cookies of one login, shared by all pages."""
    pages = Pages(browser, cluster.url, cluster.token)
    session = pages.session()
    pages.allow(".")  # a test of its own watches logging in
    pages.done()
    return session


@pytest.fixture
def pages(request: pytest.FixtureRequest, browser: Browser, cluster: Cluster, session: StorageState) -> Iterator[Pages]:
    """Opens pages of the cluster, logged in; at the end they must not have complained."""
    yield from _watched(request, Pages(browser, cluster.url, cluster.token, session=session))


@pytest.fixture
def strangers_pages(request: pytest.FixtureRequest, browser: Browser, cluster: Cluster) -> Iterator[Pages]:
    """The same without a session: for logging in, and for what is open to everybody."""
    yield from _watched(request, Pages(browser, cluster.url, cluster.token))


def _watched(request: pytest.FixtureRequest, pages: Pages) -> Iterator[Pages]:
    yield pages
    if request.node.stash.get(_FAILED, False):
        print(pages.describe())
    pages.done()
