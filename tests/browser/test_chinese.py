"""The pages in Chinese: no English is left beside names, code and what is marked as English, and times are Chinese."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Pages, check
from tests.support.cluster import Cluster

HAN = re.compile("[\u4e00-\u9fff]")
SENTENCE = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")
TIME = re.compile(
    r"刚刚|昨天|前天|\d+ (秒|分钟|小时|天)前|\d+年\d+月\d+日|\d\d:\d\d:\d\d|\d+ (毫秒|秒|分|分钟|小时|天)"
)
VISIBLE = """() => {
    const english = '[lang="en"], code, pre, script, style, template, noscript, .name, .clip, .wrap, h1, .log';
    const told = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        if (!walker.currentNode.parentElement.closest(english)) told.push(walker.currentNode.textContent.trim());
    }
    for (const element of document.querySelectorAll("[aria-label], [placeholder], [title]")) {
        if (element.closest(english)) continue;
        for (const name of ["aria-label", "placeholder", "title"]) told.push(element.getAttribute(name) ?? "");
    }
    return told;
}"""


def assert_chinese(page: Page) -> None:
    """Everything that the page itself says is Chinese."""
    told = [text for text in page.evaluate(VISIBLE) if SENTENCE.search(text)]
    assert [text for text in told if not HAN.search(text) and not text.startswith("--")] == []
    times = page.locator("main time").all_inner_texts()
    assert [time for time in times if time and not TIME.search(time)] == []


@pytest.mark.parametrize(
    "path", ["/", "/submit", "/tasks?name=zz", "/agents", "/agents/{agent}", "/tokens", "/api/v1/docs"]
)
def test_a_page_in_chinese(pages: Pages, cluster: Cluster, path: str) -> None:
    page = pages.open(path.format(agent=cluster.agents[0]), language="zh-CN")
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans-CN")
    expect(page.locator("#menu")).to_contain_text("概览")
    assert_chinese(page)


def test_a_task_in_chinese(pages: Pages, cluster: Cluster) -> None:
    task = cluster.run("echo one; exit 3", targets=cluster.agents, name="巡检", fail_count=1, parallel=1)
    page = pages.open(f"/tasks/{task.id}", language="zh-CN", width=390)
    expect(page.locator("#told")).to_contain_text("已停止：3 个运行中有 1 个失败，达到停止规则的失败数（1）。")
    expect(page.locator("#legend")).to_contain_text("2 已跳过")
    page.locator(".run .open").first.click()
    expect(page.locator("#panel")).to_contain_text(re.compile("脚本运行 .+(毫秒|秒)后结束，退出码 3。"))
    page.get_by_text("时间线").click()
    page.get_by_text("脚本与请求").click()
    expect(page.locator(".request")).to_contain_text("1 个失败后停止；运行中的继续进行")
    assert_chinese(page)
    check(page)


def test_a_plan_and_its_faults_in_chinese(pages: Pages, cluster: Cluster) -> None:
    pages.allow("status of 422")
    page = pages.open("/submit", language="zh-CN")
    for agent in cluster.agents[:2]:
        page.get_by_role("checkbox", name=agent).check()
    page.get_by_label("失败比例超过此值后").fill("20")
    expect(page.locator("#plan")).to_contain_text("2 台主机，全部同时，失败率超过 20% 时停止")
    page.get_by_role("button", name="提交", exact=True).click()
    expect(page.locator("#faults")).to_contain_text("脚本：请在此编写脚本，或上传脚本文件。")
    assert_chinese(page)
