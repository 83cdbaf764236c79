"""Where the browser of the tests comes from, and what is said when it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import chromium


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a place for the browser, both empty, on a machine without any browser."""
    monkeypatch.setattr(chromium, "PLACE", tmp_path / "place")
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("npmrc", "registry"),
    [
        (None, chromium.PUBLIC_REGISTRY),
        ("fund=false\n", chromium.PUBLIC_REGISTRY),
        ("registry = https://npm.example.net/all/\n", "https://npm.example.net/all"),
        ("; mine\n@us:registry=https://other.example.net\nregistry=https://npm.example.net\n//x/:_a=%b\n",
         "https://npm.example.net"),
    ],
)  # fmt: skip
def test_the_registry_is_the_one_of_npm(nowhere: Path, npmrc: str | None, registry: str) -> None:
    if npmrc is not None:
        (nowhere / ".npmrc").write_text(npmrc, "utf-8")
    assert chromium.registry() == registry


def test_the_environment_comes_first(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / ".npmrc").write_text("registry=https://npm.example.net\n", "utf-8")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://mirror.example.net/")
    assert chromium.registry() == "https://mirror.example.net"


@pytest.mark.parametrize("registry", ["http://127.0.0.1:1", "not an address"])
def test_without_a_browser_is_said_what_to_do(nowhere: Path, monkeypatch: pytest.MonkeyPatch, registry: str) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry)
    with pytest.raises(chromium.NoBrowser, match=r"NPM_CONFIG_REGISTRY=https.*apt-get install chromium"):
        chromium.chromium()
    assert [path.name for path in (nowhere / "place").iterdir()] == ["lock"]


def test_an_installed_browser_serves_where_none_can_be_fetched(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1")
    installed = nowhere / "google-chrome"
    installed.touch(mode=0o755)
    assert chromium.chromium().path == installed


def test_another_file_than_the_pinned_one_is_refused(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = nowhere / "@sparticuz" / "chromium" / "-" / f"chromium-{chromium.VERSION}.tgz"
    package.parent.mkdir(parents=True)
    package.write_bytes(b"something else")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", nowhere.as_uri())
    with pytest.raises(chromium.NoBrowser, match="its SHA-512 differs"):
        chromium.chromium()
