"""Every setting: name, default, unit, meaning. File (TOML), then environment (`MUSTER_NAME`), then flag; later wins.

One flat record: a daemon uses the part it needs. The settings page of the docs is drawn from `SETTINGS`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from common import log
from common.errors import InvalidRequest

_BASE_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")
_INTERVAL_LEAST_S = 0.05
_Interval = Annotated[float, msgspec.Meta(ge=_INTERVAL_LEAST_S, le=1e9)]
"""Seconds between two of something, or until something counts as late: 0 would spin, or make everything late."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""Seconds of which there may be none."""
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


def _doc(text: str) -> Any:
    return msgspec.Meta(description=text)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Intervals are at least 0.05 s, and 0.2 s is as short as anything is tested with."""

    heartbeat: Annotated[_Interval, _doc("seconds between an agent's heartbeats while it holds runs")] = 5.0
    heartbeat_idle: Annotated[_Interval, _doc("seconds between heartbeats of an idle agent")] = 15.0
    offline_after: Annotated[_Positive, _doc("missed heartbeats after which an agent is offline")] = 3
    lease: Annotated[_Interval, _doc("seconds a running run stays leased without word from its agent")] = 60.0
    begin_lease: Annotated[_Interval, _doc("seconds a claimed run may wait for its begin")] = 15.0
    pull_wait: Annotated[_Interval, _doc("longest wait of one pull, in seconds; spread by jitter")] = 45.0
    kill_grace: Annotated[_Seconds, _doc("seconds between TERM and KILL")] = 10.0
    drain_quiet: Annotated[_Seconds, _doc("seconds without output after the script ended that end its attempt")] = 0.2
    drain_most: Annotated[_Seconds, _doc("longest wait for output after the script ended, in seconds")] = 1.0
    shepherd_idle: Annotated[_Seconds, _doc("seconds after which a shepherd without work and agent ends")] = 60.0
    keeper_interval: Annotated[_Interval, _doc("seconds between the keeper's rounds in the master")] = 0.5
    facts_interval: Annotated[_Interval, _doc("seconds between two writes of an agent's facts to the store")] = 60.0
    join_token_age: Annotated[_Interval, _doc("seconds a join token stays valid")] = 86400.0
    enrol_rate: Annotated[
        _Count, _doc("failed enrol calls allowed per minute from one address, and ten times as many over all")
    ] = 60
    session_age: Annotated[_Interval, _doc("seconds after its last use that end a browser's session")] = 604800.0
    login_link_age: Annotated[_Interval, _doc("seconds a login link stays valid")] = 600.0
    login_rate: Annotated[
        _Count, _doc("failed logins allowed per minute from one address, and ten times as many over all")
    ] = 10
    output_limit: Annotated[_Count, _doc("bytes of output kept per attempt where the task sets none")] = 16 * 1024**2
    output_chunk: Annotated[_Count, _doc("largest output chunk an agent sends, in bytes")] = 256 * 1024
    output_window: Annotated[_Count, _doc("unacknowledged chunks per attempt")] = 4
    output_budget: Annotated[_Count, _doc("bytes of output waiting in the master above which it answers slow")] = (
        64 * 1024 * 1024
    )
    feed_keep: Annotated[_Count, _doc("change feed rows kept")] = 1_000_000
    feed_age: Annotated[_Seconds, _doc("seconds a change feed row is kept")] = 86400.0
    inline_script: Annotated[_Count, _doc("largest script sent inside a claim, in bytes")] = 64 * 1024
    max_script: Annotated[_Count, _doc("largest script accepted, in bytes")] = 4 * 1024 * 1024
    max_body: Annotated[_Count, _doc("largest HTTP request body, in bytes")] = 6 * 1024 * 1024
    max_targets: Annotated[_Count, _doc("largest number of runs of one task")] = 10_000
    agent_message: Annotated[_Count, _doc("largest RPC message of an agent, in bytes")] = 2 * 1024 * 1024
    web_message: Annotated[_Count, _doc("largest RPC message of a webserver, in bytes")] = 8 * 1024 * 1024
    pending_per_peer: Annotated[_Count, _doc("RPC calls one agent may have waiting")] = 16
    pending: Annotated[_Count, _doc("RPC calls waiting in all, per listener")] = 20_000
    sqlite_busy: Annotated[_Seconds, _doc("seconds to wait for a lock on the database file")] = 10.0
    readers: Annotated[_Count, _doc("reader threads of the store")] = 2
    drain: Annotated[_Seconds, _doc("seconds a stopping agent waits for its scripts")] = 30.0
    restart_delay: Annotated[_Interval, _doc("first pause before `muster up` restarts a daemon that died")] = 0.5
    restart_delay_most: Annotated[_Interval, _doc("longest such pause")] = 30.0
    slots: Annotated[_Count, _doc("attempts an agent runs at once; 0: as many as it has CPUs")] = 0
    advertise: Annotated[str, _doc("HOST:PORT that join tokens tell agents to connect to; empty: found out")] = ""
    hosts: Annotated[str, _doc("further names the webserver is known by, separated by commas")] = ""
    public_url: Annotated[
        str,
        _doc("the address that browsers use when a proxy stands before the webserver, `https://…`; empty: as asked"),
    ] = ""
    log_format: Annotated[str, _doc("`kv` (key=value) or `json`")] = "kv"
    log_level: Annotated[str, _doc("`debug`, `info`, `warning` or `error`")] = "info"


SETTINGS = tuple(Settings.__struct_fields__)


def load(
    *, file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """The settings from all three sources. Raises `InvalidRequest` naming the setting and where it came from."""
    merged: dict[str, Any] = {}
    if file is not None:
        merged.update(_from_file(file))
    for name, text in (os.environ if environ is None else environ).items():
        key = name.removeprefix("MUSTER_").lower()
        if name.startswith("MUSTER_") and key in SETTINGS:
            merged[key] = text
    merged.update({key: value for key, value in (flags or {}).items() if value is not None})
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"settings: {error}") from error
    _check_word("log_level", settings.log_level.lower(), log.LEVELS)
    _check_word("log_format", settings.log_format, log.FORMATS)
    if settings.public_url and not _BASE_URL.fullmatch(settings.public_url):
        raise InvalidRequest(
            "settings: public_url must be an address without a path, such as https://muster.example.net"
        )
    return settings


def _check_word(name: str, word: str, known: tuple[str, ...]) -> None:
    if word and word not in known:
        raise InvalidRequest(f"settings: {name} {word!r} is not known: use {', '.join(known[:-1])} or {known[-1]}")


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise InvalidRequest(f"settings file {file} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"settings file {file}: {error}") from error


def to_environ(settings: Settings) -> dict[str, str]:
    """The settings that differ from the defaults, as environment variables for a child daemon."""
    default = Settings()
    return {
        f"MUSTER_{name.upper()}": str(getattr(settings, name))
        for name in SETTINGS
        if getattr(settings, name) != getattr(default, name)
    }
