"""The first pages somebody sees, and what a filter says of an agent it does not know; before a real master."""

from __future__ import annotations

from tests.web.conftest import Stack, request
from tests.web.test_task_page import Visitor


def test_the_overview_teaches_until_there_is_a_task(stack: Stack) -> None:
    visitor = Visitor(stack)
    page = visitor.get("/").body.decode()
    assert 'id="first"' in page and 'data-step="host" data-done' in page
    assert 'href="/agents#add"' in page and 'href="/submit?example=1"' in page and 'href="/tokens"' in page
    assert stack.http.post("tasks", request()).status == 201
    page = visitor.get("/").body.decode()
    assert 'id="first"' not in page and 'id="home"' in page


def test_the_example_is_filled_in_and_runs(stack: Stack) -> None:
    page = Visitor(stack).get("/submit?example=1").body.decode()
    assert 'value="My first task"' in page and "Hello from $(hostname)" in page
    assert page.count(" checked><span") + page.count(' checked>\n<span class="host-names">') == 2


def test_a_filter_by_an_agent_that_is_none_says_which_are_close(stack: Stack) -> None:
    visitor = Visitor(stack)
    page = visitor.get("/tasks?agent=on&state=running").body.decode()
    assert '<option value="one">' in page
    assert "No agent is called “on”" in page
    assert 'href="/tasks?state=running&amp;agent=one"' in page
    assert "No agent is called “&lt;b&gt;”" in visitor.get("/tasks?agent=<b>").body.decode()
    assert "tow" not in visitor.get("/tasks?agent=tow").body.decode().partition("Did you mean")[2].partition("</p>")[2]
    assert ">two</a>" in visitor.get("/tasks?agent=tow").body.decode()
    assert "No agent is called" not in visitor.get("/tasks?agent=two&state=failed").body.decode()


def test_a_link_to_log_in_is_a_part_of_its_own(stack: Stack) -> None:
    visitor = Visitor(stack)
    part = visitor.post("/login-links", script=True)
    assert part.status == 201 and "<html" not in part.body.decode() and "/login/" in part.body.decode()
    whole = visitor.post("/login-links").body.decode()
    assert "<html" in whole and 'id="link"' in whole
