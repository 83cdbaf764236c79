"""Options that several commands share, and the words people write in them: durations, shares, K=V, settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from muster.words import _

if TYPE_CHECKING:
    from common.config import Settings
    from muster.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d)?", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Failure(Exception):
    """What was asked for could not be done: a sentence for the person, and an exit code."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def seconds(text: str) -> float:
    """`30`, `30s`, `5m`, `2h`, `1.5d` or `200ms` in seconds. Raises `ValueError` saying how to write one."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(
            _("%(text)r is no time: write seconds, or a number with a unit, such as 30s, 5m or 2h", text=text)
        )
    return float(found[1]) * _UNIT_S[found[2] or "s"]


class Duration(click.ParamType[float]):
    """A time option, as seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds from text."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Share(click.ParamType[float]):
    """A share of a whole: `0.2` or `20%`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A number of 0 to 1 from text."""
        text = str(value).strip()
        try:
            share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(
                _("%(value)r is no share: write a number from 0 to 1, or a percentage such as 20%%", value=value),
                param,
                ctx,
            )
        return share


class Several(click.ParamType[str]):
    """One or several of some words, separated by commas."""

    name = "words"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The words as they are sent, each one known."""
        given = [part.strip() for part in str(value).split(",")]
        for word in given:
            if word not in self._words:
                self.fail(_("%(word)r is none of %(words)s", word=word, words=", ".join(self._words)), param, ctx)
        return ",".join(given)


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """`K=V` texts as a map. Raises `click.BadParameter` naming `option`."""
    found: dict[str, str] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(_("%(text)r is not of the form KEY=VALUE", text=text), param_hint=option)
        found[key] = value
    return found


def names(values: tuple[str, ...]) -> list[str]:
    """The names in `--on A,B --on C`, in order, each once."""
    return list(dict.fromkeys(name.strip() for text in values for name in text.split(",")))


def server_options(command: F) -> F:
    """`--url`, `--token` and `--data`: where the webserver is."""
    for option in (
        click.option("--data", metavar="DIR", type=click.Path(path_type=Path), help=_("data directory of `muster up`")),
        click.option("--token", metavar="TOKEN", help=_("API token [MUSTER_TOKEN]")),
        click.option("--url", metavar="URL", help=_("address of the webserver [MUSTER_URL]")),
    ):
        command = option(command)
    return command


def connect(url: str | None, token: str | None, data: Path | None) -> Client:
    """The client for the options of `server_options`, closed when the command ends. Raises `NotConfigured`."""
    from muster.client import Client

    client = Client(url, token, data=data, retry_for_s=5.0)
    click.get_current_context().call_on_close(client.close)
    if data is not None and client.address.source != str(data.expanduser().absolute()):
        source = client.address.source
        click.echo("muster: " + _("--data is not used: %(source)s says where the server is", source=source), err=True)
    return client


json_option = click.option("--json", "as_json", is_flag=True, help=_("answer as JSON, for programs"))


def settings_options(*, leave_out: tuple[str, ...] = ()) -> Callable[[F], F]:
    """`--config FILE`, and every setting as a flag of its own; gives the command `config` and `flags`."""

    def add(command: F) -> F:
        from common.config import Settings

        default = Settings()
        for name in reversed(Settings.__struct_fields__):
            if name in leave_out:
                continue
            is_time = isinstance(getattr(default, name), float)  # nothing else is a fraction
            command = click.option(
                f"--{name.replace('_', '-')}",
                f"setting_{name}",
                type=Duration() if is_time else str,
                hidden=True,
            )(command)
        return click.option(
            "--config",
            metavar="FILE",
            envvar="MUSTER_CONFIG",
            type=click.Path(path_type=Path),
            help=_("settings file (TOML); every setting may also be a flag, such as --heartbeat 2s"),
        )(command)

    return add


def settings(config: Path | None, flags: dict[str, Any]) -> Settings:
    """The settings from file, environment and flags, later beating earlier. Raises `Failure` (exit code 2).

    Without a file being named, `muster.toml` in the user's configuration folder is read if there is one; an empty
    MUSTER_CONFIG means none at all.
    """
    import os

    from common.config import load
    from common.errors import InvalidRequest
    from muster.address import config_home

    default = config_home() / "muster.toml"
    if config is None and os.environ.get("MUSTER_CONFIG") is None and default.is_file():
        config = default
    chosen = {name.removeprefix("setting_"): value for name, value in flags.items() if name.startswith("setting_")}
    try:
        return load(file=config, flags=chosen)
    except InvalidRequest as error:
        raise Failure(error.message, exit_code=2) from error
