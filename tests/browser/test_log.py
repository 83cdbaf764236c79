"""The viewer of output: its model, its search, and what it shows, in a page of the product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import THEMES, Pages, Theme, check
from tests.support.cluster import Cluster

# The page has the product's styles and policy; the address of its scripts carries a hash.
_PREPARE = """() => {
    const js = document.querySelector('script[src$="/js/page.js"]').src.replace(/page\\.js$/, "");
    window.mod = (name) => import(js + "log/" + name);
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = js.replace(/js\\/$/, "css/log.css");
    const place = document.createElement("section");
    place.id = "place";
    place.setAttribute("aria-label", "Output");
    const heading = Object.assign(document.createElement("h1"), {textContent: "Log"});
    document.querySelector("main").replaceChildren(heading, place);
    return new Promise(done => { sheet.onload = () => done(); document.head.append(sheet); });
}"""
# A viewer that is fed by the test: `write(text or bytes, {stream, run, attempt})`, `told(run)`, `over()`.
_VIEWER = """async (more) => {
    const {openLog} = await mod("log.js");
    const runs = more.runs ?? [{id: "r1", attempt: 1, name: "web-1"}];
    const at = {};
    const source = (model, on) => {
        window.model = model;
        window.write = (content, {stream = "stdout", run = runs[0].id, attempt = 1, skip = 0} = {}) => {
            const bytes = typeof content === "string" ? new TextEncoder().encode(content) : Uint8Array.from(content);
            const key = run + "/" + attempt;
            at[key] = (at[key] ?? 0) + skip;
            model.append(bytes, stream, at[key], run, attempt);
            at[key] += bytes.length;
            on.grown();
        };
        window.told = (run) => on.run(run);
        window.over = () => { runs.forEach(run => model.end(run.id)); on.ended(); };
        return {close() {}};
    };
    const downloadHref = (run, attempt) => `/api/v1/runs/${run}/output?attempt=${attempt}`;
    window.viewer = openLog(document.getElementById("place"), {
        runs, path: "", title: "web-1", downloadHref, source, ...more.options,
    });
}"""
_ROWS = """(pieces) => mod("model.js").then(({Output}) => {
    const output = new Output({single: true});
    let offset = 0;
    for (const [stream, bytes] of pieces) {
        output.append(Uint8Array.from(bytes), stream, offset, "r");
        offset += bytes.length;
    }
    output.end("r");
    output.take();
    return output.rows.map(({kind, n, stream, text, marks, more}) => ({kind, n, stream, text, marks, more}));
})"""


@pytest.fixture
def page(strangers_pages: Pages) -> Page:
    return opened(strangers_pages)


def opened(pages: Pages, *, width: int = 1440, theme: Theme = "light") -> Page:
    page = pages.open("/login", logged_in=False, width=width, theme=theme)
    page.evaluate(_PREPARE)
    return page


def viewer(page: Page, **more: Any) -> None:
    page.evaluate(_VIEWER, more)


def write(page: Page, text: str, **where: Any) -> None:
    page.evaluate("([text, where]) => write(text, where)", [text, where])


def rows(page: Page, *pieces: tuple[str, bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(_ROWS, [[stream, list(content)] for stream, content in pieces])
    return found


def texts(page: Page, content: bytes) -> list[str]:
    return [row["text"] for row in rows(page, ("stdout", content))]


# -- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\r\nb\n\nc", ["a", "b", "", "c"]),
        (b"10%\r50%\r100%\nnext", ["100%", "next"]),
        (b"longer line\rshort\x1b[K\n", ["short"]),
        (b"longer line\rshort\n", ["shortr line"]),
        (b"|\b/\b-\n", ["-"]),
        (b"\x1b]0;a title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", ["alink"]),
        (b"\x1b[2J\x1b[10;5Hhome\x1b(B\x1b7\x1b[?25l\n", ["home"]),
        (b"\x1b]0;never ends\nnext", ["\u241b]0;never ends", "next"]),
        (b"\x1b", ["\u241b"]),
        (b"nul \x00 bell \x07\n", ["nul \u2400 bell \u2407"]),
        ("abc\u202etxt.exe\n".encode(), ["abc\u27e6202E\u27e7txt.exe"]),
        (b"bad \xff\xe4\xb8 byte\n", ["bad \ufffd\ufffd byte"]),
        ("下载 50%\r下载 100%\n".encode(), ["下载 100%"]),
        (b"", []),
    ],
)
def test_lines_are_what_a_terminal_shows(page: Page, content: bytes, lines: list[str]) -> None:
    assert texts(page, content) == lines


def test_any_split_of_the_bytes_gives_the_same_lines(page: Page) -> None:
    different = page.evaluate(
        r"""async () => {
            const {Output} = await mod("model.js");
            const tokens = ["a", "bc", "\r", "\n", "\r\n", "\x1b", "[", "31", "m", "K", "\b", "\t", "中", "é",
                "e\u0301", "😀", "\x1b[2K", "\x1b[1;32m", "\x1b]0;x", "\x07", "\u202e", "\x1b\\", ";", "\x1b[5G",
                "\u009b", "\0", "<b>"];
            let state = 20261130;
            const random = (n) => (state = (state * 1103515245 + 12345) % 2147483648) % n;
            const encoder = new TextEncoder();
            const rows = (pieces) => {
                const output = new Output({single: true});
                let offset = 0;
                for (const [stream, bytes] of pieces) {
                    output.append(bytes, stream, offset, "r");
                    offset += bytes.length;
                    if (random(3) === 0) output.take();
                }
                output.end("r");
                output.take();
                return JSON.stringify(output.rows);
            };
            for (let round = 0; round < 3000; round++) {
                const whole = [];
                for (let piece = random(4); piece >= 0; piece--) {
                    const bytes = [];
                    for (let n = random(14); n >= 0; n--)
                        bytes.push(...(random(12) ? encoder.encode(tokens[random(tokens.length)]) : [random(256)]));
                    whole.push([random(2) ? "stdout" : "stderr", Uint8Array.from(bytes)]);
                }
                const cut = whole.flatMap(([stream, bytes]) => {
                    const parts = [];
                    for (let i = 0; i < bytes.length;) {
                        const n = 1 + random(4);
                        parts.push([stream, bytes.subarray(i, i + n)]);
                        i += n;
                    }
                    return parts;
                });
                if (rows(whole) !== rows(cut)) return [rows(whole), rows(cut)];
            }
            return null;
        }"""
    )
    assert different is None


def test_lines_of_both_pipes_stay_whole_and_in_order(page: Page) -> None:
    found = rows(page, ("stdout", b"one "), ("stderr", b"trouble\n"), ("stdout", b"line\n"), ("stderr", b"more"))
    assert [(row["n"], row["stream"], row["text"]) for row in found] == [
        (1, "stdout", "one line"),
        (2, "stderr", "trouble"),
        (3, "stderr", "more"),
    ]


def test_what_is_missing_and_what_comes_twice(page: Page) -> None:
    found = page.evaluate(
        """async () => {
            const {Output} = await mod("model.js");
            const output = new Output();
            const bytes = (text) => new TextEncoder().encode(text);
            output.append(bytes("hello "), "stdout", 0, "r");
            output.append(bytes("lo world\\n"), "stdout", 3, "r");
            output.append(bytes("tail\\n"), "stdout", 1000, "r");
            output.append(bytes("late"), "stdout", 0, "r");
            output.append(bytes("again\\n"), "stdout", 0, "r", 2);
            output.append(bytes("old"), "stdout", 1005, "r", 1);
            output.take();
            const said = (row) => [row.kind, row.n ?? row.offset ?? null, row.text ?? row.length ?? null];
            return output.rows.map(said);
        }"""
    )
    assert found == [
        ["line", 1, "hello world"],
        ["gap", 12, 988],
        ["line", 2, "tail"],
        ["attempt", None, None],
        ["line", 1, "again"],
    ]


def test_the_oldest_lines_go_when_there_are_too_many(page: Page) -> None:
    found = page.evaluate(
        """async () => {
            const {Output} = await mod("model.js");
            const output = new Output({linesMost: 1000});
            let offset = 0;
            for (let i = 1; i <= 5000; i++) {
                const bytes = new TextEncoder().encode(`line ${i}\\n`);
                output.append(bytes, "stdout", offset, "r");
                offset += bytes.length;
            }
            const [first, second] = output.rows;
            const last = output.rows.at(-1).text;
            return [output.rows.length <= 1000, first.kind, second.n - 1 === first.lines, last, output.size];
        }"""
    )
    assert found == [True, "dropped", True, "line 5000", 48893]


def test_colours_become_classes(page: Page) -> None:
    viewer(page)
    write(
        page,
        "\x1b[1;31mred\x1b[0m \x1b[38;5;208;48;2;0;0;90morange on blue\x1b[39;49m "
        "\x1b[7mturned\x1b[27m \x1b[4:3mwave\n",
    )
    line = page.locator(".log-text").first
    expect(line.locator("span").first).to_have_class("a-t2 a-bold")
    assert line.locator("span").evaluate_all("all => all.map(each => [each.className, each.textContent])") == [
        ["a-t2 a-bold", "red"],
        ["a-t12 a-g5", "orange on blue"],
        ["a-inverse", "turned"],
        ["a-underline", "wave"],
    ]


# -- the viewer -------------------------------------------------------------------------------------------------------


def fill(page: Page, lines: int = 300) -> None:
    write(page, "".join(f"line number {n}\n" for n in range(1, lines + 1)))
    expect(page.locator(".log-sums")).to_contain_text(f"{lines} lines")


def shown(page: Page) -> list[int]:
    """The numbers of the lines that can be seen."""
    found: list[int] = page.evaluate(
        """() => {
            const box = document.querySelector(".log-scroller").getBoundingClientRect();
            return [...document.querySelectorAll(".log-n")].filter(each => {
                const {top, bottom} = each.getBoundingClientRect();
                return top >= box.top - 1 && bottom <= box.bottom + 1;
            }).map(each => Number(each.dataset.n));
        }"""
    )
    return found


def see(page: Page, number: int) -> None:
    page.wait_for_function(
        """number => {
            const box = document.querySelector(".log-scroller").getBoundingClientRect();
            const row = document.querySelector(`.log-n[data-n="${number}"]`)?.getBoundingClientRect();
            return row && row.top >= box.top - 1 && row.bottom <= box.bottom + 1;
        }""",
        arg=number,
    )


def test_it_follows_until_one_scrolls_up(page: Page) -> None:
    viewer(page)
    page.evaluate("told({id: 'r1', state: 'running', outcome: null})")
    expect(page.locator(".log-said")).to_have_text("Still running…")
    expect(page.locator(".log .badge")).to_have_text("running")
    fill(page)
    see(page, 300)
    follow = page.get_by_role("button", name="Follow")
    expect(follow).to_have_attribute("aria-pressed", "true")
    page.locator(".log-scroller").hover()
    page.mouse.wheel(0, -700)
    expect(follow).to_have_attribute("aria-pressed", "false")
    write(page, "more\n" * 50)
    expect(page.locator(".log-sums")).to_contain_text("350 lines")
    assert max(shown(page)) < 300
    page.locator(".log-scroller").press("End")
    expect(follow).to_have_attribute("aria-pressed", "true")
    see(page, 350)
    write(page, "last without end")
    see(page, 351)
    write(page, ", and it grows")
    expect(page.locator(".log-text").last).to_have_text("last without end, and it grows")
    page.locator(".log-scroller").press("Home")
    see(page, 1)
    page.get_by_role("button", name="To the end").click()
    see(page, 351)
    page.evaluate("told({id: 'r1', state: 'failed', outcome: 'exit', exit_code: 3})")
    page.evaluate("over()")
    expect(page.locator(".log-said")).to_have_text("Ended: exit code 3.")
    expect(follow).to_be_hidden()


def test_searching(page: Page) -> None:
    viewer(page)
    fill(page)
    write(page, "needle [x] one\nNEEDLE [X] and needle [x]\n")
    page.locator(".log-scroller").focus()
    page.keyboard.press("Home")
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    search.fill("needle [x]")
    count = page.locator(".log-count")
    expect(count).to_have_text("1 of 2")
    see(page, 301)
    expect(page.locator(".log mark")).to_have_count(3)
    search.press("Enter")
    expect(count).to_have_text("2 of 2")
    search.press("Enter")
    expect(count).to_have_text("1 of 2")
    search.press("Shift+Enter")
    expect(count).to_have_text("2 of 2")
    expect(page.locator(".log-row.current .log-n")).to_have_attribute("data-n", "302")
    write(page, "another needle [x]")
    expect(count).to_have_text("2 of 3")
    search.fill("number 7")
    expect(count).to_have_text("1 of 11")
    search.fill("not there")
    expect(count).to_have_text("no match")
    search.press("Escape")
    expect(search).to_have_value("")
    expect(page.locator(".log-scroller")).to_be_focused()
    page.keyboard.press("Control+f")
    expect(search).to_be_focused()


def test_the_first_error_and_one_pipe_only(page: Page) -> None:
    viewer(page)
    fill(page)
    write(page, "0 errors, 0 failed\nTraceback (most recent call last):\n")
    write(page, "warning: on stderr\n", stream="stderr")
    page.get_by_role("button", name="First error").click()
    see(page, 302)
    expect(page.locator(".log-row.marked .log-n")).to_have_attribute("data-n", "302")
    page.get_by_role("button", name="stderr", exact=True).click()
    expect(page.locator(".log-row")).to_have_count(1)
    expect(page.locator(".log-row.err .log-text")).to_have_text("warning: on stderr")
    page.get_by_role("button", name="First error").click()
    see(page, 302)
    expect(page.get_by_role("button", name="All", exact=True)).to_have_attribute("aria-pressed", "true")


def test_a_line_has_an_address(page: Page) -> None:
    viewer(page, options={"line": 150})
    fill(page)
    see(page, 150)
    expect(page.locator(".log-row.marked .log-n")).to_have_attribute("data-n", "150")
    assert page.url.endswith("#run=r1&line=150")
    page.get_by_role("link", name="line 152", exact=True).click()
    assert page.url.endswith("#run=r1&line=152")
    expect(page.locator(".log-row.marked .log-n")).to_have_attribute("data-n", "152")
    page.evaluate("location.hash = '#run=r1&line=20'")
    see(page, 20)
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")


def test_wrapping(page: Page) -> None:
    viewer(page)
    write(page, "".join(f"{n} " + "x" * (n % 700) + "\n" for n in range(1, 2001)))
    see(page, 2000)
    wrap = page.get_by_role("button", name="Wrap")
    wrap.click()
    see(page, 2000)
    list_ = page.locator(".log-scroller")
    assert list_.evaluate("each => each.scrollWidth <= each.clientWidth")
    list_.press("Home")
    see(page, 1)
    page.evaluate("location.hash = '#run=r1&line=1300'")
    see(page, 1300)
    wrap.click()
    see(page, 1300)
    list_.press("End")
    see(page, 2000)


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_is_in_view_stays_when_older_lines_go(page: Page, wrapped: bool) -> None:
    viewer(page, options={"most": {"linesMost": 1000}})
    if wrapped:
        page.get_by_role("button", name="Wrap").click()
    write(page, "".join(f"{n} " + "x" * (n % 200) + "\n" for n in range(1, 951)))
    page.evaluate("location.hash = '#run=r1&line=500'")
    see(page, 500)
    before = shown(page)
    write(page, "more\n" * 150)
    expect(page.locator(".log-sums")).to_contain_text("1,100 lines")
    assert shown(page) == before
    write(page, "more\n" * 2000)
    page.locator(".log-scroller").press("Home")
    expect(page.locator(".log-row").first).to_contain_text("older lines are not shown here")
    page.locator(".log-scroller").press("End")
    see(page, 3100)


def test_gaps_and_lines_without_end(page: Page) -> None:
    viewer(page)
    write(page, "head\n")
    write(page, "tail\n", skip=1_258_291)
    expect(page.locator(".log-note.n-gap")).to_contain_text(
        "1.2 MiB were dropped here: 1,258,291 bytes from offset 5 were not kept."
    )
    page.evaluate("for (let i = 0; i < 100; i++) write(new Uint8Array(100_000).fill(65))")
    expect(page.locator(".log-more")).to_have_text("… 9,990,000 more characters; see the raw output")
    assert len(page.locator(".log-text").last.inner_text()) == 10_000


def test_markup_stays_text(page: Page) -> None:
    viewer(
        page, runs=[{"id": "r1", "attempt": 1, "name": "<i>one</i>"}, {"id": "r2", "attempt": 1, "name": "\u202etwo"}]
    )
    evil = "<img src=x onerror=alert(1)>\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\ \u202eevil"
    write(page, evil + "\n")
    write(page, "two\n", run="r2")
    expect(page.locator(".log-text").first).to_have_text("<img src=x onerror=alert(1)>link ⟦202E⟧evil")
    expect(page.locator(".log-who")).to_have_text(["<i>one</i>", "⟦202E⟧two"])
    assert page.locator(".log img, .log i, .log a[href^=javascript]").count() == 0


def test_two_hundred_thousand_lines(page: Page) -> None:
    viewer(page)
    took = page.evaluate(
        """async () => {
            const line = " the quick brown fox jumps over the lazy dog \\x1b[32mok\\x1b[0m\\n";
            let longest = 0, last = performance.now();
            const frame = (now) => {
                longest = Math.max(longest, now - last);
                last = now;
                requestAnimationFrame(frame);
            };
            requestAnimationFrame(frame);
            const began = performance.now();
            for (let chunk = 0; chunk < 2000; chunk++) {
                let text = "";
                for (let i = 1; i <= 100; i++) text += chunk * 100 + i + line;
                write(text);
                if (chunk % 5 === 0) await new Promise(done => setTimeout(done));
            }
            return {all: performance.now() - began, longest};
        }"""
    )
    print(json.dumps(took))
    expect(page.locator(".log-sums")).to_contain_text("200,000 lines")
    see(page, 200_000)
    assert page.locator(".log-row").count() < 200
    page.locator(".log-scroller").evaluate("each => { each.scrollTop = each.scrollHeight / 2 }")
    see(page, 100_001)
    assert page.locator(".log-row").count() < 200
    numbers = shown(page)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert page.locator('.log-row:has([data-n="100001"]) .log-text').inner_text().startswith("100001 the quick")
    page.get_by_role("searchbox").fill("199999 the")
    expect(page.locator(".log-count")).to_have_text("1 of 1")
    see(page, 199_999)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [1440, 390])
def test_how_it_looks(strangers_pages: Pages, theme: Theme, width: int) -> None:
    page = opened(strangers_pages, theme=theme, width=width)
    names = ["web-1", "数据库-主节点", "a-name-that-is-longer-than-its-column-is-wide.example.org"]
    viewer(page, runs=[{"id": f"r{n}", "attempt": 1, "name": name} for n, name in enumerate(names, 1)])
    grounds = [0, *range(40, 48), *range(100, 108)]
    for text in [39, *range(30, 38), *range(90, 98)]:
        write(page, "".join(f"\x1b[{text};{ground}m {text} \x1b[0m" for ground in grounds) + "\x1b[2mfaint\x1b[0m\n")
    write(page, "on \x1b[7mstderr\x1b[0m \x1b[31mred \x1b[92mgreen\x1b[0m\n", stream="stderr", run="r2")
    write(page, "未找到文件 found nothing\n", run="r3")
    write(page, "end\n", run="r3", skip=3000)
    page.get_by_role("searchbox").fill("found")
    expect(page.locator(".log-count")).to_have_text("1 of 1")
    check(page)


# -- with a real run --------------------------------------------------------------------------------------------------


def test_a_real_run_is_followed_to_its_end(pages: Pages, cluster: Cluster) -> None:
    task = cluster.run("echo err >&2; printf 'a\\rout\\n'; seq 500; exit 3")
    run = next(iter(cluster.client.runs(task.id)))
    page = pages.open("/tokens")
    page.evaluate(_PREPARE)
    for attempt in (None, 1):
        page.evaluate(
            """async ([run, attempt]) => {
                const {openLog} = await mod("log.js");
                window.viewer?.close();
                window.viewer = openLog(document.getElementById("place"), {
                    runs: [{id: run, attempt: 1, name: "web"}], path: `/api/v1/runs/${run}/events`,
                    attempt, title: "web",
                    downloadHref: (id, number) => `/api/v1/runs/${id}/output?attempt=${number}`,
                });
            }""",
            [run.id, attempt],
        )
        expect(page.locator(".log-sums")).to_contain_text("502 lines")
        page.get_by_role("searchbox").fill("out")
        expect(page.locator(".log-row.current .log-text")).to_have_text("out")
        if attempt is None:
            expect(page.locator(".log-said")).to_have_text("Ended: exit code 3.")
            page.get_by_role("button", name="stderr").click()
            expect(page.locator(".log-text")).to_have_text(["err"])
    with page.expect_download() as download:
        page.get_by_role("link", name="Download raw").click()
    assert download.value.path().read_bytes() == cluster.output(task)


def test_runs_of_a_task_are_merged_live(pages: Pages, cluster: Cluster, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    task = cluster.start_script(f"until [ -e {go_on} ]; do sleep 0.05; done; echo the end", targets=cluster.agents[:2])
    runs = [{"id": run.id, "attempt": 1, "name": run.where} for run in cluster.client.runs(task.id)]
    page = pages.open("/tokens")
    page.evaluate(_PREPARE)
    page.evaluate(
        """async ([task, runs]) => (await mod("log.js")).openLog(document.getElementById("place"), {
            runs, path: `/api/v1/tasks/${task}/events`, attempt: null, title: "all", downloadHref: (id) => "/" + id,
        })""",
        [task.id, runs],
    )
    expect(page.locator(".log-said")).to_have_text("2 still running…")
    expect(page.locator(".log-text")).to_have_text(["begun", "begun"])
    assert set(page.locator(".log-who").all_inner_texts()) == {run["name"] for run in runs}
    go_on.touch()
    expect(page.locator(".log-said")).to_have_text("All have ended.")
    expect(page.locator(".log-sums")).to_contain_text("4 lines")
    expect(page.locator(".log-text").last).to_have_text("the end")
    page.get_by_text("Download raw").click()
    expect(page.locator(".log-downloads li")).to_have_text([run["name"] for run in runs])
    check(page)
