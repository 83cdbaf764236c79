"""The page that submits, in a browser and before real agents: what is sent is what was written, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from common.model import OnStop
from common.requests import TaskRequest
from muster.client import Task
from tests.support.browser import LANGUAGES, Language, Pages, check, check_forms
from tests.support.cluster import Cluster, muster
from webserver import commands

EDITOR = "#editor .cm-content"
EVERYTHING = TaskRequest(
    script=b"#!/bin/sh\n# EOF 'quotes' \"$(more)\" `of` them \\ !! \xe4\xb8\xad\xe6\x96\x87\nEOF\nEOF_\n\ttrue\n",
    interpreter=["/bin/sh", "-e"],
    args=[
        "--",
        "-x",
        "",
        "two words",
        "it's",
        'a "b" $HOME `id` \\',
        "line\nline\n",
        "中\u202e\ufeff\x1b[31m\r\t!",
        "%s\\n",
    ],
    env={"A": "", "B": "a'b\nc\r\n", "C_1": "\u2028 =x %d $PATH"},
    cwd="/tmp",
    timeout=0.25,
    parallel=2,
    fail_count=3,
    fail_rate=0.07,
    on_stop=OnStop.KILL,
    priority=7,
    expires=3600.5,
    lost_after=0.0,
    output_limit=4096,
)
SCRIPTS = {
    "many characters": EVERYTHING.script,
    "no line end": b"true # it's 100% \\n \\ done",
    "a leading dash": b"-n true\n",
    "empty lines": b"\n\n\ntrue\n\n\n",
    "CRLF and BOM": b"\xef\xbb\xbf#!/bin/sh\r\ntrue\r\n",
    "escapes": b"true \x1b]0;x\x07 \x7f\n",
    "bytes": bytes(range(256)),
    "invisible": "true # \u202e\u200b\u00ad\n".encode(),
}


def fresh(page: Page) -> Locator:
    """The editor, when the page is ready."""
    editor = page.locator(EDITOR)
    expect(editor).to_be_visible()
    return editor


def pick(page: Page, *names: str) -> None:
    for name in names:
        page.locator("#hosts .host", has_text=name).first.get_by_role("checkbox").check()


def sent(page: Page, cluster: Cluster) -> Task:
    """Send the form and follow it to the task that it made."""
    page.locator("#send").click()
    page.wait_for_url("**/tasks/*")
    return cluster.client.task(page.url.rsplit("/", 1)[1])


def upload(page: Page, content: bytes, name: str = "script.sh") -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": content})
    expect(page.locator("#file-name")).to_have_text(name)


def paste(page: Page, text: str) -> None:
    page.locator(EDITOR).evaluate(
        """(element, text) => {
            const carried = new DataTransfer();
            carried.setData("text/plain", text);
            const options = {clipboardData: carried, bubbles: true, cancelable: true};
            element.dispatchEvent(new ClipboardEvent("paste", options));
        }""",
        text,
    )


def finished(cluster: Cluster, script: str | bytes, **options: Any) -> Task:
    return cluster.client.wait(cluster.client.submit(script, **options).id)


def is_script(task: Task, content: bytes) -> None:
    assert task.raw["script_sha256"] == hashlib.sha256(content).hexdigest()


# -- commands ----------------------------------------------------------------------------------------------------------


def told(request: TaskRequest, task: dict[str, Any]) -> None:
    """The task was stored from exactly this request."""
    assert task["script_sha256"] == hashlib.sha256(request.script).hexdigest()
    wanted = {name: getattr(request, name) for name in request.__struct_fields__[1:]}
    if request.output_limit is None:
        del wanted["output_limit"]
    assert {name: task[name] for name in wanted} == wanted


def shell(cluster: Cluster, words: list[str], command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody who put a token into MUSTER_TOKEN."""
    tool = folder / "muster"
    tool.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in muster()) + ' "$@"\n')
    tool.chmod(0o755)
    environ = {
        **{name: text for name, text in os.environ.items() if not name.startswith("MUSTER_")},
        "PATH": f"{folder}:{os.environ['PATH']}",
        "MUSTER_TOKEN": cluster.token,
    }
    return subprocess.run(words, input=command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


def as_stored(cluster: Cluster, request: TaskRequest, tmp_path: Path, kind: str, words: list[str]) -> dict[str, Any]:
    name = f"{uuid.uuid4().hex} it's “$x”\u202e"
    named = TaskRequest(**{**{f: getattr(request, f) for f in request.__struct_fields__}, "name": name})
    command = getattr(commands, kind)(named, url=cluster.url)
    assert command.isascii() or all(c.isprintable() or c in "\n\t" for c in command)
    done = shell(cluster, words, command, tmp_path)
    if kind == "curl":
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["state"], done
    else:
        found = list(cluster.client.tasks(name=name[:32]))
        assert len(found) == 1, (done, command)
        answer = dict(cluster.client.task(found[0].id).raw)
    told(named, answer)
    return answer


@pytest.mark.parametrize("words", [["bash"], ["sh"]], ids=["bash", "sh"])
@pytest.mark.parametrize("kind", ["curl", "muster_run"])
def test_commands_submit_exactly_the_request(cluster: Cluster, tmp_path: Path, kind: str, words: list[str]) -> None:
    request = TaskRequest(
        **{**{f: getattr(EVERYTHING, f) for f in EVERYTHING.__struct_fields__}, "targets": list(cluster.agents)}
    )
    as_stored(cluster, request, tmp_path, kind, words)


@pytest.mark.parametrize("kind", ["curl", "muster_run"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_commands_carry_every_script(cluster: Cluster, tmp_path: Path, kind: str, script: bytes) -> None:
    as_stored(cluster, TaskRequest(script=script, count=1, interpreter=["true"]), tmp_path, kind, ["sh"])


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_in_every_form(pages: Pages, cluster: Cluster, language: Language) -> None:
    pages.allow("status of 422")
    page = pages.open("/submit", language=language)
    fresh(page).fill("#!/bin/bash\necho hello\n")
    page.locator("#more summary").click()
    pick(page, *cluster.agents)
    expect(page.locator("#plan .plan-first")).to_contain_text("3")
    check_forms(page)
    page.locator("#timeout").fill("soon")
    page.locator("button[value=run]").click()
    expect(page.locator("#timeout")).to_have_attribute("aria-invalid", "true")
    check_forms(page)
    page.locator("#timeout").fill("5m")
    page.locator("button[value=run]").click()
    expect(page.locator("#command-run")).to_contain_text("--timeout=300")
    check_forms(page)


def test_the_plan_is_said_back(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/submit")
    plan = page.locator("#plan")
    expect(plan).to_have_text("Choose at least one host.")
    pick(page, *cluster.agents)
    expect(page.locator("#chosen")).to_have_text(re.compile(r"^3 of \d selected$"))
    expect(plan).to_contain_text("3 hosts, all at once")
    page.locator("#parallel").fill("2")
    page.locator("#fail_count").fill("2")
    page.locator("#fail_rate").fill("12.5%")
    expect(plan).to_contain_text("3 hosts, 2 at a time, stops after 2 failures, stops when more than 12.5% have failed")
    page.get_by_label("On any").check()
    page.get_by_label("Number of hosts").fill("2")
    expect(plan).to_contain_text(re.compile(r"any 2 of \d hosts"))
    page.get_by_label("Number of hosts").fill("9")
    expect(plan).to_contain_text("Fewer hosts than that")


def test_the_list_is_live_and_an_offline_host_is_named(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/submit")
    fresh(page)
    expect(page.locator("#live")).to_have_attribute("data-state", "open")
    daemon = cluster.add_agent("latecomer", "--label", "role=db")
    row = page.locator("#hosts .host", has_text="latecomer")
    expect(row).to_contain_text("role=db")
    page.locator("#filter").fill("ROLE=d")
    expect(page.locator("#hosts .host")).to_have_count(1)
    page.locator("#choose-all").click()
    page.locator("#filter").fill("")
    expect(row.get_by_role("checkbox")).to_be_checked()
    expect(page.locator("#plan")).to_contain_text("1 host")
    daemon.send(15)
    expect(row).to_contain_text("offline")
    expect(page.locator("#plan")).to_contain_text("1 host is offline and will run it when back, for 24 h: latecomer")
    daemon.wait(60)
    cluster.client.forget_agent("latecomer")
    expect(row).to_contain_text("not known here")
    page.locator("#choose-none").click()
    expect(row).to_have_count(0)


def test_what_is_written_is_sent_and_opens_the_task(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/submit")
    editor = fresh(page)
    editor.fill("#!/usr/bin/env python3\nprint(1)\n")
    expect(page.locator("#editor .cm-line span").first).to_be_visible()
    pick(page, cluster.agents[0])
    page.locator("#args").fill("-v 'two words' \"\"")
    page.get_by_label("Variable").first.fill("WHO")
    page.get_by_label("Value", exact=True).first.fill("a b\nc")
    page.locator("#name").fill("从网页")
    task = sent(page, cluster)
    is_script(task, b"#!/usr/bin/env python3\nprint(1)\n")
    raw = task.raw
    assert (raw["args"], raw["env"]) == (["-v", "two words", ""], {"WHO": "a b\nc"})
    assert (raw["name"], raw["targets"], raw["submitted_by"]) == ("从网页", [cluster.agents[0]], "admin")
    expect(page.locator("#notices")).to_contain_text("Submitted.")
    page.goto(f"{cluster.url}/submit")
    expect(fresh(page)).to_have_text("")


@pytest.mark.parametrize("name", ["many characters", "CRLF and BOM", "bytes", "no line end", "escapes"])
def test_a_file_is_sent_byte_for_byte(pages: Pages, cluster: Cluster, name: str) -> None:
    page = pages.open("/submit")
    fresh(page)
    upload(page, SCRIPTS[name], "<b>rund&now</b>.sh")
    expect(page.locator("#binary" if name == "bytes" else EDITOR)).to_be_visible()
    pick(page, cluster.agents[0])
    is_script(sent(page, cluster), SCRIPTS[name])


def test_pasted_line_ends_stay_unless_they_are_mended(pages: Pages, cluster: Cluster) -> None:
    text = "\ufeff#!/bin/sh\r\necho one\r\necho two\r\n"
    page = pages.open("/submit")
    fresh(page).focus()
    paste(page, text)
    mend = page.locator("#mend")
    expect(mend).to_contain_text("CRLF")
    expect(mend).to_contain_text("byte-order mark")
    check(page)
    pick(page, cluster.agents[0])
    is_script(sent(page, cluster), text.encode())
    page.goto(f"{cluster.url}/submit")
    fresh(page).focus()
    paste(page, text)
    page.get_by_role("button", name="Convert to \\n line ends").click()
    expect(mend).to_be_hidden()
    pick(page, cluster.agents[0])
    is_script(sent(page, cluster), b"#!/bin/sh\necho one\necho two\n")


def test_a_dropped_file_is_taken(pages: Pages) -> None:
    page = pages.open("/submit")
    fresh(page).evaluate(
        """element => {
            const carried = new DataTransfer();
            carried.items.add(new File(["echo dropped\\n"], "dropped.sh"));
            for (const kind of ["dragover", "drop"])
                element.dispatchEvent(new DragEvent(kind, {dataTransfer: carried, bubbles: true, cancelable: true}));
        }"""
    )
    expect(page.locator("#file-name")).to_have_text("dropped.sh")
    expect(page.locator(EDITOR)).to_contain_text("echo dropped")
    page.get_by_role("button", name="Remove the file").click()
    expect(page.locator("#file-line")).to_be_hidden()
    expect(page.locator(EDITOR)).to_have_text("")


def test_what_is_wrong_is_said_at_its_field_and_nothing_is_lost(pages: Pages, cluster: Cluster) -> None:
    pages.allow("status of 4")
    page = pages.open("/submit")
    fresh(page)
    page.locator("#timeout").fill("soon")
    page.get_by_label("Variable").first.fill("1X")
    page.locator("#send").click()
    faults = page.locator("#faults")
    expect(faults).to_be_focused()
    expect(faults.get_by_role("link")).to_have_text(["Script", "Time limit", "Environment", "Where to run"])
    expect(page.locator("#timeout")).to_have_attribute("aria-invalid", "true")
    check(page)
    faults.get_by_role("link", name="Time limit").click()
    expect(page.locator("#timeout")).to_be_focused()
    expect(page.locator("#timeout")).to_have_value("soon")
    faults.get_by_role("link", name="Script").click()
    expect(page.locator(EDITOR)).to_be_focused()
    page.keyboard.type("true")
    expect(page.locator("#script-fault")).to_have_count(0)
    expect(faults.get_by_role("link")).to_have_text(["Time limit", "Environment", "Where to run"])
    page.locator("#timeout").fill("1.5h")
    expect(page.locator("#timeout")).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Variable").first.fill("X1")
    expect(faults.get_by_role("link")).to_have_text(["Where to run"])
    pick(page, cluster.agents[1])
    expect(faults).to_be_empty()
    expect(page.locator("small.fault")).to_have_count(0)
    check(page)
    assert sent(page, cluster).raw["timeout"] == 5400


def test_a_draft_outlasts_a_reload_until_it_is_cleared(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/submit")
    fresh(page)
    upload(page, SCRIPTS["bytes"], "blob.bin")
    page.locator("#fail_rate").fill("20")
    page.get_by_label("Variable").first.fill("KEPT")
    page.locator("#more summary").click()
    page.get_by_label("stop them").check()
    pick(page, cluster.agents[2])
    page.reload()
    expect(page.locator("#binary")).to_be_visible()
    expect(page.locator("#file-name")).to_have_text("blob.bin")
    expect(page.locator("#fail_rate")).to_have_value("20")
    expect(page.get_by_label("Variable").first).to_have_value("KEPT")
    expect(page.get_by_label("stop them")).to_be_checked()
    expect(page.locator("#chosen")).to_have_text(re.compile(r"^1 of \d selected$"))
    page.locator("#clear").click()
    expect(page.locator("#chosen")).to_have_text(re.compile(r"^0 of \d selected$"))
    expect(page.locator("#fail_rate")).to_have_value("")
    expect(page.locator("#binary")).to_be_hidden()


def test_a_task_is_taken_as_the_start_and_sent_again_as_it_was(pages: Pages, cluster: Cluster) -> None:
    first = cluster.client.submit(
        EVERYTHING.script, targets=list(cluster.agents[:2]), args=EVERYTHING.args, env=dict(EVERYTHING.env),
        interpreter=["true"], timeout=0.25, parallel=1, fail_count=3, fail_rate=0.07, on_stop="kill", priority=7,
        expires=3600.5, lost_after=0.0, output_limit=4096, cwd="/tmp", name="line\nline",
    )  # fmt: skip
    page = pages.open("/submit")
    page.get_by_role("link", name="Start from the last submission").click()
    fresh(page)
    expect(page.locator("#chosen")).to_have_text(re.compile(r"^2 of \d selected$"))
    check(page)
    again = sent(page, cluster).raw
    for name in TaskRequest.__struct_fields__[1:]:
        assert again[name] == first.raw[name], name
    assert again["script_sha256"] == first.raw["script_sha256"]


@pytest.mark.parametrize("name", ["many characters", "CRLF and BOM", "bytes", "escapes", "invisible"])
def test_the_editor_keeps_the_content_policy(pages: Pages, cluster: Cluster, name: str) -> None:
    task = finished(cluster, SCRIPTS[name], count=1, interpreter=["true"], output_limit=1 << 20)
    page = pages.open(f"/submit?from={task.id}", theme="dark")
    expect(page.locator("#output_limit")).to_have_value("1M")
    if name != "bytes":
        fresh(page).focus()
        page.keyboard.type("\tif [ 1 ]; then")
        page.keyboard.press("Control+a")
        page.keyboard.press("Control+f")
        page.emulate_media(color_scheme="light")
        page.reload()  # the draft is put in; the fixture reads what the browser complained about
        expect(fresh(page)).to_contain_text("if [ 1 ]")
    check(page)


def test_keys_alone_are_enough(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/submit")
    fresh(page).focus()
    page.keyboard.type("true")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.locator("#args")).to_be_focused()
    page.locator("#filter").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(page.locator("#chosen")).to_have_text(re.compile(r"^1 of \d selected$"))
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/tasks/*")
    assert cluster.client.task(page.url.rsplit("/", 1)[1]).raw["targets"] == [cluster.agents[1]]


def test_it_works_without_scripts(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/submit", scripts=False)
    page.locator("#script").fill("\n\ntrue\n# it's <&>\n")
    page.locator("#timeout").fill("x")
    page.get_by_role("checkbox", name=cluster.agents[0]).check()
    pages.allow("status of 4")
    page.locator("#send").click()
    expect(page.locator("#timeout-fault")).to_be_visible()
    expect(page.locator("#script")).to_have_value("\n\ntrue\n# it's <&>\n")
    page.locator("#timeout").fill("30")
    page.locator("button[value=curl]").click()
    expect(page.locator("#command-curl")).to_contain_text('"timeout": 30.0')
    is_script(sent(page, cluster), b"\n\ntrue\n# it's <&>\n")


def test_a_double_click_makes_one_task(pages: Pages, cluster: Cluster) -> None:
    page = pages.open("/submit", scripts=False)
    page.locator("#script").fill("true")
    page.locator("#name").fill("clicked twice")
    page.get_by_role("checkbox", name=cluster.agents[0]).check()
    page.locator("#send").dblclick()
    page.wait_for_url("**/tasks/*")
    page.go_back()
    assert len(list(cluster.client.tasks(name="clicked twice"))) == 1


def test_the_command_is_copied_as_it_is(pages: Pages, cluster: Cluster, tmp_path: Path) -> None:
    page = pages.open("/submit")
    fresh(page)
    upload(page, SCRIPTS["CRLF and BOM"])
    page.locator("#name").fill("copied <b>")
    pick(page, cluster.agents[0])
    page.locator("button[value=curl]").click()
    page.locator("#command-panel").get_by_role("button", name="Copy").click()
    expect(page.locator("#notices")).to_contain_text("Copied.")
    command = page.evaluate("navigator.clipboard.readText()")
    answer = json.loads(shell(cluster, ["sh"], command, tmp_path).stdout)
    assert (answer["name"], answer["targets"]) == ("copied <b>", [cluster.agents[0]])
    assert answer["script_sha256"] == hashlib.sha256(SCRIPTS["CRLF and BOM"]).hexdigest()


def test_five_hundred_hosts_stay_usable(pages: Pages, cluster: Cluster) -> None:
    known = [
        {
            "id": f"00000000-0000-7000-8000-{n:012}", "name": f"web-{n:03}", "hostname": "很长的主机名" * 6,
            "state": "offline" if n % 7 == 0 else "online", "labels": {"role": f"r{n % 10}"}, "slots": 8, "held": n % 8,
            "facts": {"load": n / 100},
        }
        for n in range(500)
    ]  # fmt: skip

    def many(route: Route) -> None:
        answer = route.fetch()
        text = re.sub(r'(id="hosts-known">).*?(</script>)', lambda m: m[1] + json.dumps(known) + m[2], answer.text())
        route.fulfill(response=answer, body=text)

    context = pages.context(width=390)
    page = context.new_page()
    page.route("**/submit", many)
    page.goto(f"{cluster.url}/submit")
    expect(page.locator("#hosts .host")).to_have_count(200)
    expect(page.locator("#hosts-more")).to_contain_text("300 more hosts match")
    check(page)
    page.locator("#filter").fill("role=r3 web-4")
    expect(page.locator("#hosts .host")).to_have_count(10)
    page.locator("#choose-all").click()
    page.locator("#filter").fill("")
    expect(page.locator("#chosen")).to_have_text("10 of 500 selected")
    page.locator("#choose-all").click()
    expect(page.locator("#chosen")).to_have_text("500 of 500 selected")
    took_ms = page.evaluate(
        """async () => {
            const filter = document.getElementById("filter"), began = performance.now();
            for (const text of ["w", "we", "web", "web-", "web-2"]) {
                filter.value = text;
                filter.dispatchEvent(new Event("input", {bubbles: true}));
                await new Promise(requestAnimationFrame);
                await new Promise(requestAnimationFrame);
            }
            return performance.now() - began;
        }"""
    )
    assert took_ms < 2000


def test_an_ended_session_loses_nothing(pages: Pages, cluster: Cluster) -> None:
    pages.allow("status of 401")
    context = pages.context(logged_in=False)
    page = context.new_page()
    pages.log_in(page)
    page.goto(f"{cluster.url}/submit")
    fresh(page).fill("echo kept")
    page.locator("#parallel").fill("4")
    pick(page, cluster.agents[0])
    context.clear_cookies()
    page.locator("#send").click()
    page.wait_for_url("**/login?next=*")
    pages.log_in(page)
    page.goto(f"{cluster.url}/submit")
    expect(page.locator(EDITOR)).to_have_text("echo kept")
    expect(page.locator("#parallel")).to_have_value("4")
    is_script(sent(page, cluster), b"echo kept")
