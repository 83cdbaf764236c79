"""Whatever a user or an agent can say is text on every page and on a terminal: never an element or an escape."""

from __future__ import annotations

import os
import pty
import re
import select
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from common.model import Ending, Leftover, Outcome
from muster.client import Agent, Client, Run, Task
from tests.support.browser import Pages, check
from tests.support.cluster import Cluster, muster
from tests.support.fleet import CALM, Act, Fleet
from tests.support.hostile import CONTROLS, ELEMENT, SHORT, TAGS, markup, output, payload, raw_in_terminal
from webserver.plain import plain

WHO = f"who{SHORT}<img src=x>"
BROWSER = f"{SHORT}"
QUEUE = "a+b.c;d$_(e)-"
SCRIPT = f"#!/bin/sh\n# {markup('script')}\necho\n"
ABOUT = {
    "name": payload("agent"),
    "hostname": payload("hostname"),
    "version": payload("build"),
    "labels": {payload("label"): payload("value"), "plain": "one"},
    "queues": [payload("queue"), "default"],
    "facts": {
        **{name: payload(name) for name in ("os", "kernel", "arch")},
        "addresses": [f"at{SHORT}"],
        "boot_at": SHORT,
        "version": f"facts{SHORT}",
        "cpus": 2,
    },
}
PLAN = [
    Act(
        agents="0",
        about=ABOUT,
        output=((1, output()), (2, output())),
        ending=Ending(
            outcome=Outcome.SPAWN_ERROR,
            duration_s=0.5,
            detail=payload("detail"),
            steps=[(1_790_000_000_000, payload("step"))],
            leftovers=[Leftover(pid=7, command=payload("leftover"))],
        ),
    ),
    Act(
        agents="1",
        about={"name": markup("other")},
        ending=Ending(outcome=Outcome.SIGNAL, signal=payload("signal"), duration_s=0.5),
    ),
]
# What must not be on any page: elements that came of a text, and characters that the page did not make visible.
FAULTS = """() => {
    const found = [], raw = /[CONTROLS]/;
    if (window.hit !== undefined) found.push("a script ran");
    for (const e of document.querySelectorAll("ELEMENT, img, iframe, object, [onerror], [onload], [onx]"))
        found.push("an element: " + e.outerHTML.slice(0, 200));
    for (const e of document.scripts)
        if (e.type !== "application/json" && e.text.trim()) found.push("a script: " + e.text);
    const walker = document.createTreeWalker(document, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode.data;
        if (raw.test(text) && !walker.currentNode.parentElement.closest("script, textarea, .cm-editor"))
            found.push("raw text: " + JSON.stringify(text.slice(0, 300)));
    }
    for (const e of document.querySelectorAll("*")) for (const {name, value} of e.attributes)
        if (raw.test(value) && !["value", "href", "data-name", "data-id", "data-labels", "data-text"].includes(name))
            found.push(`raw ${name}: ` + JSON.stringify(value.slice(0, 300)));
    return [...new Set(found)];
}""".replace("CONTROLS", CONTROLS).replace("ELEMENT", ELEMENT)
SAYS = """texts => {
    const said = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode())
        if (!walker.currentNode.parentElement.closest("script")) said.push(walker.currentNode.data);
    for (const e of document.querySelectorAll("input, textarea")) said.push(e.value);
    const all = said.join("");
    window.unsaid = texts.filter(text => !all.includes(text));
    return window.unsaid.length === 0;
}"""


@dataclass
class Scene:
    """A cluster in which every text is hostile."""

    cluster: Cluster
    client: Client  # of the token with a hostile name
    task: Task
    cancelled: Task
    agents: list[Agent]
    runs: list[Run]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """It stands for all tests of this module."""
    cluster = Cluster(tmp_path_factory.mktemp("hostile") / "m", agents=0, settings=CALM)
    with cluster, Fleet(cluster, 2, PLAN), Client(cluster.url, cluster.client.add_token(WHO).token) as client:
        agents = sorted(cluster.client.agents(), key=lambda agent: agent.name)
        assert [agent.name.partition(":")[0] for agent in agents] == ["agent", "other"]
        task = client.submit(
            SCRIPT,
            name=payload("name"),
            args=[payload("arg")],
            env={"ENV_NAME": payload("env")},
            interpreter=["/bin/sh", payload("interpreter")],
            cwd="/" + payload("cwd"),
            queue=QUEUE,
            targets=[agent.name for agent in agents],
        )
        task = client.wait(task.id, timeout_s=60.0)
        cluster.client.drain_agent(agents[0].id)
        cancelled = client.submit("true", name=markup("cancelled"), targets=[agents[0].id])
        client.cancel(cancelled.id)
        cluster.client.resume_agent(agents[0].id)
        runs = sorted(cluster.client.runs(task.id), key=lambda run: run.where)
        log_in_as(cluster, WHO, BROWSER)
        yield Scene(cluster, client, task, client.wait(cancelled.id), agents, runs)


def log_in_as(cluster: Cluster, name: str, browser: str) -> None:
    """Make a session of that name, from such a browser."""
    link = urllib.parse.urljoin(cluster.url, cluster.client.login_link(name).url)
    asked = urllib.request.Request(link, data=b"next=/login", headers={"User-Agent": browser})
    urllib.request.urlopen(asked, timeout=30).close()


@pytest.fixture(scope="module")
def session_here(scene: Scene, browser: Browser) -> StorageState:
    """One login for all pages of the scene."""
    pages = Pages(browser, scene.cluster.url, scene.cluster.token)
    session = pages.session()
    pages.done()
    return session


@pytest.fixture
def wary(scene: Scene, browser: Browser, session_here: StorageState) -> Iterator[Pages]:
    """Pages of the scene; what they complain about fails the test, such as requests elsewhere and broken policies."""
    pages = Pages(browser, scene.cluster.url, scene.cluster.token, session=session_here)
    yield pages
    pages.done()


def announced(place: str) -> str:
    """A label's text as the master keeps it when an agent says it: what cannot be printed is replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in payload(place))


def sound(page: Page, *texts: str) -> None:
    """These are on the page as text, and nothing came of them."""
    wanted = [plain(text) for text in texts]
    try:
        page.wait_for_function(SAYS, arg=wanted, timeout=10_000)
    except Exception:
        raise AssertionError(f"{page.url} does not say: {page.evaluate('window.unsaid')}") from None
    assert page.evaluate(FAULTS) == [], page.url
    assert not re.search(f"[{CONTROLS}]", page.title())


@pytest.mark.parametrize("width", [1440, 390])
def test_lists(wary: Pages, scene: Scene, width: int) -> None:
    name = payload("name")
    sound(wary.open("/", width=width), name)
    sound(wary.open("/tasks", width=width), name, markup("cancelled"), WHO)
    page = wary.open("/agents", width=width)
    label = f"{announced('label')}={announced('value')}"
    sound(page, scene.agents[0].name, payload("hostname"), label, f"facts{SHORT}")
    check(page)


def test_a_task_with_its_request_and_groups(wary: Pages, scene: Scene) -> None:
    page = wary.open(f"/tasks/{scene.task.id}")
    texts = [payload(place) for place in ("name", "arg", "env", "interpreter", "cwd", "signal")]
    sound(page, *texts, *(agent.name for agent in scene.agents), markup("script"), QUEUE, WHO)
    check(page)
    sound(wary.open(f"/tasks/{scene.task.id}", scripts=False), *texts[:-1])
    sound(wary.open(f"/tasks/{scene.cancelled.id}"), f"Cancelled by {WHO}.")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_and_its_output(wary: Pages, scene: Scene, stream: str) -> None:
    page = wary.open(f"/tasks/{scene.task.id}#run={scene.runs[0].id}")
    panel = page.locator("#panel")
    expect(panel.locator(".log-row", has_text="the last line").first).to_be_visible()
    sound(page, scene.agents[0].name, *(payload(place) for place in ("detail", "step", "leftover")))
    page.goto(f"{wary.url}/tasks/{scene.task.id}#run={scene.runs[0].id}&line=1")
    for text in TAGS.values():
        expect(panel.locator(".log-row", has_text=text).first).to_be_attached()
    sound(page)
    page.goto(f"{wary.url}/tasks/{scene.task.id}#output")
    expect(panel.locator(".log-row", has_text="the last line").first).to_be_attached()
    sound(page)


def test_an_agent_and_what_is_done_to_it(wary: Pages, scene: Scene) -> None:
    agent = scene.agents[0]
    page = wary.open(f"/agents/{agent.id}")
    facts = [payload(name) for name in ("os", "kernel", "arch", "hostname", "queue", "name")]
    sound(page, agent.name, *facts, f"at{SHORT}", f"facts{SHORT}", announced("label"))
    check(page)
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_role("dialog")).to_contain_text(agent.name)
    sound(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    sound(page, agent.name)
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()
    page.goto(f"{wary.url}/agents/{scene.agents[1].id}")
    page.get_by_label("New label").fill(markup("set"))
    page.get_by_role("button", name="Add", exact=True).last.click()
    sound(page, markup("set"))


def test_the_form_filled_from_a_task(wary: Pages, scene: Scene) -> None:
    page = wary.open(f"/submit?from={scene.task.id}")
    sound(page, scene.agents[0].name, payload("hostname"), markup("script"), payload("name"))
    assert page.locator("[name=env_value]").first.input_value() == payload("env")
    name = f"{ELEMENT}><{ELEMENT}><img src=x onerror=hit=1>\u202e.sh"
    page.locator("#file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": SCRIPT.encode()})
    sound(page, name)
    page.locator("#file-remove").click()
    page.locator("#filter").fill(markup("filter"))
    sound(page, markup("filter"))


def test_tokens_and_sessions(wary: Pages, scene: Scene) -> None:
    page = wary.open("/tokens")
    sound(page, WHO, BROWSER)
    check(page)
    page.get_by_role("row", name=WHO).first.get_by_role("button").click()
    expect(page.get_by_role("dialog")).to_contain_text(WHO)
    sound(page)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/tasks?name={}", True),
        ("/tasks?state={}", False),
        ("/tasks?agent={}", True),
        ("/tasks?period={}", False),
        ("/tasks?since={}&cursor={}", False),
        ("/agents?q={}", True),
        ("/agents?state={}", False),
        ("/submit?on={}", True),
        ("/submit?from={}", False),
        ("/tasks/{}", False),
        ("/agents/{}", False),
        ("/runs/{}", False),
        ("/{}", False),
        ("/login?next={}", False),
        ("/api/v1/docs?q={}#{}", False),
    ],
)
def test_addresses(wary: Pages, path: str, shown: bool) -> None:
    wary.allow("status of 404", "status of 422", "status of 400")
    text = markup("here")
    page = wary.open(path.replace("{}", urllib.parse.quote(text, safe="")))
    expect(page.locator("main")).to_be_visible()
    sound(page, *([text] if shown else []))


def test_what_comes_while_one_looks(wary: Pages, scene: Scene) -> None:
    context = wary.context()
    tabs = {path: context.new_page() for path in ("/", "/tasks", "/agents", f"/agents/{scene.agents[1].id}")}
    for path, page in tabs.items():
        page.goto(wary.url + path)
        expect(page.locator("#live")).to_have_attribute("data-state", "open")
    task = scene.client.submit("true", name=payload("news"), targets=[scene.agents[1].name])
    scene.client.wait(task.id)
    scene.cluster.client.patch_agent(scene.agents[1].id, labels={markup("news label"): markup("news value")})
    label = f"{markup('news label')}={markup('news value')}"
    said = {"/": payload("news"), "/tasks": payload("news"), "/agents": label}
    for path, page in tabs.items():
        page.bring_to_front()
        sound(page, said.get(path, payload("news")))


@pytest.mark.parametrize(
    "words",
    [
        ["tasks"],
        ["show", "{task}"],
        ["show", "{cancelled}"],
        ["logs", "{task}"],
        ["agents"],
        ["agents", "list"],
        ["agents", "show", "{agent}"],
        ["tokens"],
        ["why", "{run}"],
        ["show", "{task}", "--json"],
        ["agents", "--json"],
        ["agents", "show", markup("nobody").replace("/", "")],
    ],
    ids=lambda words: " ".join(words)[:25],
)
def test_a_terminal(scene: Scene, words: list[str]) -> None:
    known = {"task": scene.task.id, "cancelled": scene.cancelled.id, "agent": scene.agents[0].id}
    known["run"] = scene.runs[0].id
    written = at_terminal(scene.cluster, [known.get(word.strip("{}"), word) for word in words])
    assert raw_in_terminal(written) == []
    assert f"<{ELEMENT}>".encode() in written


def at_terminal(cluster: Cluster, words: list[str]) -> bytes:
    """What `muster WORDS…` writes to a terminal of its own."""
    pid, fd = pty.fork()
    if pid == 0:
        environ = {name: text for name, text in cluster.cli_environ().items() if name != "NO_COLOR"}
        os.execvpe(muster()[0], muster(*words), {**environ, "TERM": "xterm", "COLUMNS": "400"})
    seen, deadline = b"", time.monotonic() + 60
    try:
        while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            more = os.read(fd, 65536)
            if not more:
                break
            seen += more
    except OSError:  # the other side has ended
        pass
    os.close(fd)
    os.waitpid(pid, 0)
    return seen
