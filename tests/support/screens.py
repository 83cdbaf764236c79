"""Pictures of every page, for people to look at: both widths, both themes, both languages.

    scripts/screens DIR [--page NAME]... [--width N]... [--theme T]... [--language L]... [--viewport]

A cluster of its own is started and filled (`tests.support.demo`). Files are called NAME-WIDTH-THEME-LANGUAGE.png. What
pages complain about is printed, as is what does not fit or is not accessible; the pictures are made all the same.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import get_args

from playwright.sync_api import Error, Page

from muster.client import Task
from tests.support import demo
from tests.support.browser import WIDTHS, Language, Pages, Theme, assert_accessible, assert_fits, browser_started
from tests.support.cluster import Cluster

# Live pages get this long to show what they fetch after they are loaded.
SETTLE_MS = 700
OPEN_TO_ALL = ("login", "login-link")


def paths(tasks: dict[str, Task]) -> dict[str, str]:
    """The pages by name."""
    return {
        "home": "/",
        "submit": "/submit",
        "tasks": "/tasks",
        **{f"task-{what}": f"/tasks/{task.id}" for what, task in tasks.items()},
        "agents": "/agents",
        "agent": "/agents/web-01",
        "agent-long": f"/agents/{demo.LONG}",
        "agent-offline": f"/agents/{demo.OFFLINE}",
        "tokens": "/tokens",
        "login": "/login",
        "login-link": "",
        "api-docs": "/api/v1/docs",
        "not-found": "/no/such/page",
    }


def take(pages: Pages, names: dict[str, str], chosen: argparse.Namespace) -> int:
    """Take the pictures; answers of how many pages something is wrong."""
    wrong = 0
    wanted = {name: path for name, path in names.items() if not chosen.page or name in chosen.page}
    for width, theme, language in product(chosen.width, chosen.theme, chosen.language):
        for name, path in wanted.items():
            about = f"{name}-{width}-{theme}-{language}"
            page = pages.open(
                path or pages.login_link(),
                width=width,
                theme=theme,
                language=language,
                logged_in=name not in OPEN_TO_ALL,
            )
            page.wait_for_timeout(SETTLE_MS)
            page.screenshot(path=chosen.folder / f"{about}.png", full_page=not chosen.viewport)
            faults = _faults(pages, page)
            wrong += bool(faults)
            print(about, *faults, sep="\n    " if faults else " ", flush=True)
    return wrong


def _faults(pages: Pages, page: Page) -> list[str]:
    rules: list[Callable[[], None]] = [lambda: assert_fits(page), lambda: assert_accessible(page), pages.done]
    faults = []
    for rule in rules:
        try:
            rule()
        except (AssertionError, Error) as error:
            faults.append(str(error))
    pages.complaints.clear()
    return faults


def chinese_fonts() -> None:
    """Chinese needs a font. As root on Debian and Ubuntu it is installed; elsewhere what is missing is said."""
    known = shutil.which("fc-list") and subprocess.run(["fc-list", ":lang=zh-cn"], capture_output=True).stdout
    if known or not Path("/usr/bin/apt-get").exists():
        return
    words = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "install", "fontconfig", "fonts-noto-cjk"]
    if subprocess.run(words, stdout=subprocess.DEVNULL).returncode != 0:
        print("No Chinese font could be installed (package fonts-noto-cjk): pictures show boxes.", file=sys.stderr)


def main() -> int:
    """What `scripts/screens` runs."""
    parser = argparse.ArgumentParser(prog="scripts/screens", description="Takes a picture of every page.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the pictures go")
    parser.add_argument("--page", action="append", help="only this page, such as home or task-failed; may be repeated")
    parser.add_argument("--width", action="append", type=int)
    parser.add_argument("--theme", action="append", choices=get_args(Theme))
    parser.add_argument("--language", action="append", choices=get_args(Language))
    parser.add_argument("--viewport", action="store_true", help="only what the screen shows, not the whole page")
    chosen = parser.parse_args()
    chosen.width = chosen.width or list(WIDTHS)
    chosen.theme = chosen.theme or list(get_args(Theme))
    chosen.language = chosen.language or list(get_args(Language))
    chosen.folder.mkdir(parents=True, exist_ok=True)
    chinese_fonts()
    with (
        tempfile.TemporaryDirectory(prefix="muster-screens-", ignore_cleanup_errors=True) as path,
        Cluster(Path(path) / "m", agents=0) as cluster,
        browser_started() as browser,
    ):
        names = paths(demo.make(cluster))
        pages = Pages(browser, cluster.url, cluster.token)
        pages.session()
        pages.complaints.clear()
        pages.allow(names["not-found"])
        wrong = take(pages, names, chosen)
    print(f"{wrong} pages with something wrong" if wrong else "nothing is wrong with any page")
    return 0


if __name__ == "__main__":
    sys.exit(main())
