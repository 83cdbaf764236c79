"""Where the webserver is and with which token to speak to it, found the same way by every program of a user.

First what the caller says, then MUSTER_URL and MUSTER_TOKEN, then `client.toml` in the user's configuration folder
(`url`, `token`), then a data directory of `muster up` on this machine. Standard library only.
A token found beside one address is never sent to another.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.words import _


class NotConfigured(Exception):
    """Nothing says where the webserver is, or what says it cannot be read."""


@dataclass(frozen=True, slots=True)
class Address:
    """A base URL without a slash at its end, the token to send, and a few words on where both come from."""

    url: str
    token: str | None = field(repr=False)
    source: str


def state_home(environ: Mapping[str, str] | None = None) -> Path:
    """The default data directory of `muster up`: `muster` in the user's state folder."""
    known = os.environ if environ is None else environ
    base = known.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "muster"


def config_home(environ: Mapping[str, str] | None = None) -> Path:
    """The user's folder for `client.toml` and `muster.toml`."""
    known = os.environ if environ is None else environ
    base = known.get("XDG_CONFIG_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "muster"


def data_directory(named: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """The data directory: as named, else MUSTER_DATA, else the user's state folder. It need not exist."""
    known = os.environ if environ is None else environ
    return Path(named or known.get("MUSTER_DATA") or state_home(known)).expanduser().absolute()


def find(
    *,
    url: str | None = None,
    token: str | None = None,
    data: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Address:
    """The address to use. Raises `NotConfigured` with a sentence on what to do."""
    known = os.environ if environ is None else environ
    sources: tuple[Callable[[], Address | None], ...] = (
        lambda: _said(known.get("MUSTER_URL"), known.get("MUSTER_TOKEN"), "MUSTER_URL"),
        lambda: _configured(config_home(known) / "client.toml"),
        lambda: _local(data_directory(data, known)),
    )
    said = token or _token_of_environment(url, known)
    if url and said:
        return Address(_clean(url), said, "--url")
    for source in sources:
        found = source()
        if found is not None and (not url or found.url == _clean(url)):
            return Address(found.url, said or found.token, found.source)
    if url:
        return Address(_clean(url), said, "--url")
    said = _(
        "no server is known: start one here with `muster up`, or say where it is with --url or MUSTER_URL "
        "(there is no %(file)s either)",
        file=data_directory(data, known) / "url",
    )
    raise NotConfigured(said)


def _token_of_environment(url: str | None, known: Mapping[str, str]) -> str | None:
    """MUSTER_TOKEN, unless MUSTER_URL beside it names another address than `url`."""
    token, beside = known.get("MUSTER_TOKEN") or None, known.get("MUSTER_URL")
    return token if not (url and beside) or _bare(beside) == _bare(url) else None


def _said(url: str | None, token: str | None, source: str) -> Address | None:
    return Address(_clean(url), token or None, source) if url else None


def _configured(file: Path) -> Address | None:
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # an unreadable file, no UTF-8, no TOML
        raise NotConfigured(_("%(file)s cannot be read: %(why)s", file=file, why=error)) from error
    url, token = values.get("url"), values.get("token")
    if not isinstance(url, str | None) or not isinstance(token, str | None):
        raise NotConfigured(_("%(file)s: `url` and `token` must be text", file=file))
    return _said(url, token, str(file))


def _local(data_dir: Path) -> Address | None:
    url = _line(data_dir / "url")
    return _said(url, _line(data_dir / "admin.token"), str(data_dir))


def _line(file: Path) -> str | None:
    try:
        return file.read_text("utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NotConfigured(_("%(file)s cannot be read: %(why)s", file=file, why=error)) from error


def _clean(url: str) -> str:
    cleaned = _bare(url)
    if not cleaned.startswith(("http://", "https://")):
        raise NotConfigured(_("%(url)r is no base URL: it must begin with http:// or https://", url=url))
    return cleaned


def _bare(url: str) -> str:
    return url.strip().rstrip("/")
