"""What the pages use of others: it is what the manifest says, it fetches nothing, and it is packaged."""

from __future__ import annotations

import configparser
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "webserver/assets"
STATIC = ROOT / "webserver/static"
VENDOR = STATIC / "vendor"
AXE = ROOT / "tests/data/axe"
MANIFEST: dict[str, list[dict[str, Any]]] = json.loads((VENDOR / "manifest.json").read_text("utf-8"))
FETCHES = re.compile(
    r"""sourceMappingURL|@import|url\(\s*(?!["']?data:)|\bimportScripts\(|\bimport\s*\(|"""
    r"""\b(?:from|import)\s*["'](?:\w+:|[/.@])|\bfetch\(\s*["'`]|<(?:use|image|script)\b"""
)


@pytest.mark.parametrize("entry", MANIFEST["files"], ids=lambda entry: str(entry["file"]))
def test_a_file_is_what_the_manifest_says(entry: dict[str, Any]) -> None:
    content = (VENDOR / entry["file"]).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])
    assert (ASSETS / entry["source"]).is_file() or entry["source"].startswith(entry["packages"][0] + "/")


def test_the_folder_and_the_manifest_hold_the_same() -> None:
    found = {str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.is_file()}
    texts = {package["text"] for package in MANIFEST["packages"]}
    assert found == {entry["file"] for entry in MANIFEST["files"]} | texts | {"manifest.json"}


def test_every_package_has_its_licence_and_is_of_the_locked_version() -> None:
    locked = json.loads((ASSETS / "package-lock.json").read_text("utf-8"))["packages"]
    assert {name for entry in MANIFEST["files"] for name in entry["packages"]} == {
        package["name"] for package in MANIFEST["packages"]
    }
    for package in MANIFEST["packages"]:
        assert package["version"] == locked[f"node_modules/{package['name']}"]["version"], package["name"]
        assert package["licence"] in {"MIT", "ISC", "0BSD"}, package["name"]
        assert "Permission " in (VENDOR / package["text"]).read_text("utf-8")


def test_versions_are_exact_and_the_lock_names_no_host() -> None:
    stated = json.loads((ASSETS / "package.json").read_text("utf-8"))
    versions = {**stated["dependencies"], **stated["devDependencies"]}
    assert [name for name, version in versions.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    lock = json.loads((ASSETS / "package-lock.json").read_text("utf-8"))["packages"]
    assert {**lock[""]["dependencies"], **lock[""]["devDependencies"]} == versions
    assert [name for name, entry in lock.items() if name and not entry["integrity"].startswith("sha512-")] == []
    assert "://" not in (ASSETS / "package-lock.json").read_text("utf-8")


@pytest.mark.parametrize("file", [entry["file"] for entry in MANIFEST["files"]])
def test_a_file_fetches_nothing(file: str) -> None:
    found = FETCHES.search((VENDOR / file).read_text("utf-8"))
    assert found is None, found


@pytest.mark.parametrize(
    "text",
    ["//# sourceMappingURL=a.map", "import x from 'https://a'", 'import"./b.js"', "import('c')", "url(//a/b.png)"],
)
def test_what_would_be_fetched_is_seen(text: str) -> None:
    assert FETCHES.search(text)


def test_the_icons_are_the_listed_ones() -> None:
    listed = (ASSETS / "icons.txt").read_text("utf-8").split()
    assert listed == sorted(set(listed))
    sprite = (VENDOR / "icons.svg").read_text("utf-8")
    assert re.findall(r'<symbol id="i-([a-z0-9-]+)" viewBox="0 0 24 24"', sprite) == listed
    assert not re.search(r"<style|\sstyle=|<script|\son\w+=|<foreignObject", sprite)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_editor_can_be_read(theme: str) -> None:
    colours: dict[str, str] = json.loads((ASSETS / "editor-colours.json").read_text("utf-8"))[theme]
    behind = {name: colours.pop(name) for name in ("background", "line", "selection", "match")}
    pairs = {(front, back): contrast(colours[front], behind[back]) for front in colours for back in behind}
    assert {pair: ratio for pair, ratio in pairs.items() if ratio < 4.5} == {}


def test_the_checker_of_the_browser_tests_is_the_locked_one() -> None:
    stated = json.loads((ASSETS / "package.json").read_text("utf-8"))
    version = stated["devDependencies"]["axe-core"]
    assert (AXE / "axe.min.js").read_text("utf-8").startswith(f"/*! axe v{version}\n")
    assert f"axe-core {version} " in (AXE / "README.md").read_text("utf-8")
    assert "Mozilla Public License" in (AXE / "LICENSE").read_text("utf-8")


def test_what_the_pages_need_is_packaged() -> None:
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg", "utf-8")
    webserver = ROOT / "webserver"
    packaged = {
        path
        for pattern in parsed["options.package_data"]["muster._app.webserver"].split()
        for path in webserver.glob(pattern)
    }
    needed = {
        path
        for folder in ("static", "templates", "translations")
        for path in (webserver / folder).rglob("*")
        if path.is_file() and path.name != "messages.pot"
    }
    assert sorted(str(path.relative_to(webserver)) for path in needed - packaged) == []
    assert not any(path.is_relative_to(ASSETS) for path in packaged)


def test_every_icon_is_used_and_every_used_icon_is_there() -> None:
    sprite = (VENDOR / "icons.svg").read_text("utf-8")
    there = set(re.findall(r'id="i-([a-z0-9-]+)"', sprite))
    sources = [*(ROOT / "webserver/templates").rglob("*.html"), *(ROOT / "webserver/pages").rglob("*.py")]
    sources += [*(STATIC / "js").rglob("*.js")]
    said = " ".join(path.read_text("utf-8") for path in sources)
    unused = {name for name in there if not re.search(rf"""["'(]{name}["')]""", said)}
    asked = set(re.findall(r'\bicon\("([a-z0-9-]+)"', said))
    assert (unused, asked - there) == (set(), set())
