"""The form of a submission: its values as a browser sends and shows them, and the request they make.

Promises that a form filled from a task makes the same request again, byte for byte, where nothing was changed, although
browsers rewrite line ends; that a fault is told at its field, in the visitor's language, and loses no value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from flask_babel import gettext as _
from msgspec import UNSET, UnsetType
from werkzeug.datastructures import FileStorage, MultiDict

from common.errors import MusterError, TooLarge
from common.requests import TaskRequest, default_name
from webserver.form_fields import COUNT_MOST, FIELDS, SHOWN, Wrong, lines, number, short, words

INTERPRETERS = {"sh": ["/bin/sh"], "bash": ["bash"], "python3": ["python3"]}
"""What can be chosen by name; besides, the script's first line decides, or any other words."""
OTHER = "other"
_TEXTS = {
    "interpreter": "", "interpreter_other": "", "args": "", "name": "", "cwd": "", "timeout": "1h", "parallel": "",
    "fail_count": "", "fail_rate": "", "on_stop": "finish", "where": "selected", "count": "1", "among": "all",
    "queue": "default", "priority": "1024", "expires": "24h", "lost_after": "2m", "output_limit": "",
}  # fmt: skip
_MORE = ("cwd", "queue", "priority", "expires", "lost_after", "output_limit")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KEY = re.compile(r"[!-~]{1,100}\Z")
_MORE_HOSTS_MOST = 20_000  # those unknown here are shown again, each with a row
Faults = dict[str, str]


@dataclass(slots=True)
class SubmitForm:
    """The values as shown. `start`: the exact ones it was filled with, which stand where the shown ones still do."""

    texts: dict[str, str] = field(default_factory=lambda: dict(_TEXTS))
    script: bytes = b""
    env: list[tuple[str, str]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)
    key: str = field(default_factory=lambda: f"page-{uuid.uuid4().hex}")
    faults: Faults = field(default_factory=dict)

    @classmethod
    def of_task(
        cls, view: Mapping[str, Any], script: bytes, targets: Sequence[str], *, output_limit: int | None = None
    ) -> SubmitForm:
        """To submit a task again; `targets`: its targets by present names; `output_limit`: what none stands for."""
        form = cls(script=script, targets=list(targets))
        shown = {name: view[name] for name in SHOWN if view.get(name) is not None}
        if shown.get("name") == default_name(script):
            del shown["name"]
        if "output_limit" in shown and shown["output_limit"] == output_limit:
            del shown["output_limit"]
        form.texts |= {name: SHOWN[name](value) for name, value in shown.items()}
        env = view.get("env") or {}
        form.env = list(env.items())
        form.start = {name: value for name, value in shown.items() if name != "on_stop"} | {"env": env}
        form.texts |= _interpreter_texts(view.get("interpreter"))
        form.texts["where"] = "selected" if view.get("count") is None else "any"
        form.texts["count"] = str(view.get("count") or 1)
        form.texts["among"] = "selected" if view.get("targets") else "all"
        return form

    @classmethod
    def of_post(cls, posted: MultiDict[str, str], file: FileStorage | None = None) -> SubmitForm:
        """What a browser sent. Raises `TooLarge` for more hosts than a page can show again."""
        form = cls()
        form.texts |= {name: posted[name] for name in _TEXTS if name in posted}
        rows = zip(posted.getlist("env_name"), posted.getlist("env_value"), strict=False)
        form.env = [(name.strip(), lines(value)) for name, value in rows if name.strip() or value]
        more = re.split(r"[,\n]", lines(posted.get("more_targets", "")), maxsplit=_MORE_HOSTS_MOST)
        if len(more) > _MORE_HOSTS_MOST:
            raise TooLarge(f"The form names more than {_MORE_HOSTS_MOST} hosts by hand: submit to fewer at once.")
        form.targets = list(dict.fromkeys(name.strip() for name in posted.getlist("target") + more if name.strip()))
        form.start = _start(posted.get("start", ""))
        if _KEY.match(posted.get("key", "")):
            form.key = posted["key"]
        try:
            form.script = _script(posted, file)
        except Wrong as wrong:
            form.faults["script"] = str(wrong)
        return form

    # -- as shown ----------------------------------------------------------------------------------------------------

    @property
    def script_text(self) -> str | None:
        """The script as text that a page can hold; None when it is not UTF-8, or has a NUL."""
        try:
            text = self.script.decode()
        except UnicodeDecodeError:
            return None
        return None if "\0" in text else text

    @property
    def script_base64(self) -> str:
        """The script's bytes."""
        return base64.b64encode(self.script).decode()

    @property
    def start_json(self) -> str:
        """`start` as a hidden field carries it."""
        return json.dumps(self.start) if self.start else ""

    @property
    def wants_more(self) -> bool:
        """Whether something among the rarer options is not as usual, or wrong."""
        return any(name in self.faults or self.texts[name] != _TEXTS[name] for name in _MORE)

    # -- as a request ------------------------------------------------------------------------------------------------

    def request(self, *, max_script: int, script: bytes | None = None) -> TaskRequest | None:
        """The request, or None with `faults` filled. `script`: in place of the form's own, if only the rest counts."""
        content = self.script if script is None else script
        if "script" not in self.faults and not content:
            self.faults["script"] = _("Write a script here, or upload one.")
        elif len(content) > max_script:
            self.faults["script"] = _(
                "The script has %(size)s bytes; at most %(most)s are accepted.", size=len(content), most=max_script
            )
        read: dict[str, Any] = {"script": content, "targets": None, "count": None}
        for name in FIELDS:
            self._take(read, name, partial(self._exact, name))
        self._take(read, "interpreter", self._interpreter)
        self._take(read, "env", self._env)
        self._take(read, "targets", self._chosen_targets)
        if self.texts["where"] == "any":
            self._take(read, "count", partial(number, self.texts["count"], least=1, most=COUNT_MOST))
        return None if self.faults else TaskRequest(**read)

    def _take(self, read: dict[str, Any], name: str, parse: Callable[[], Any]) -> None:
        try:
            read[name] = parse()
        except Wrong as wrong:
            self.faults.setdefault("interpreter_other" if name == "interpreter" else name, str(wrong))

    def _exact(self, name: str) -> Any:
        """The value it was filled with while it is shown still, else what is shown now."""
        text = self.texts[name]
        if name in self.start and _same(name, SHOWN[name](self.start[name]), text):
            return self.start[name]
        return FIELDS[name](lines(text))

    def _interpreter(self) -> list[str] | None:
        chosen = self.texts["interpreter"]
        if chosen != OTHER:
            return INTERPRETERS.get(chosen)
        given = self.start.get("interpreter")
        if given and _same("interpreter", shlex.join(given), self.texts["interpreter_other"]):
            return list(given)
        found = words(lines(self.texts["interpreter_other"]))
        if not found or not found[0]:
            raise Wrong(_("Name a program, such as /usr/bin/perl -w."))
        return found

    def _env(self) -> dict[str, str]:
        given = self.start.get("env", {})
        if [(name, lines(value)) for name, value in given.items()] == self.env:
            return dict(given)
        found: dict[str, str] = {}
        for name, value in self.env:
            if not _ENV_NAME.match(name):
                raise Wrong(
                    _("“%(name)s”: a name has letters, digits and _, and does not begin with a digit.", name=name[:60])
                )
            if name.startswith("MUSTER_"):
                raise Wrong(_("%(name)s: names that begin with MUSTER_ are set by muster itself.", name=name[:60]))
            if name in found:
                raise Wrong(_("%(name)s is there twice.", name=name[:60]))
            found[name] = short(value)
        return found

    def _chosen_targets(self) -> list[str] | None:
        if self.texts["where"] == "any" and self.texts["among"] == "all":
            return None
        if not self.targets:
            raise Wrong(_("Choose at least one host."))
        return list(self.targets)

    # -- what was refused later --------------------------------------------------------------------------------------

    def refused(self, error: MusterError) -> None:
        """Note faults that the master, or the check it shares, found in the request of this form."""
        for fault in error.fields:
            name = re.split(r"[.\[]", fault.field, maxsplit=1)[0]
            known = name in self.texts or name in ("script", "env", "targets", "count")
            self.faults.setdefault(name if known else "", fault.message)
        if not error.fields:
            self.faults.setdefault("", error.message)


def _same(name: str, shown: str, sent: str) -> bool:
    """Whether `sent` is what a browser makes of `shown`: it rewrites line ends, and a field of one line has none."""
    if name == "args":
        return lines(shown) == lines(sent)
    return re.sub(r"[\r\n]", "", shown) == re.sub(r"[\r\n]", "", sent)


def _script(posted: MultiDict[str, str], file: FileStorage | None) -> bytes:
    if file is not None and file.filename:
        content: bytes = file.read()
        return content
    try:
        exact = base64.b64decode(posted.get("script_base64", ""), validate=True)
    except (binascii.Error, ValueError):
        raise Wrong(_("The script was damaged on its way: send it again.")) from None
    if "script" not in posted:
        return exact
    text = lines(posted["script"])
    return exact if exact and lines(exact.decode("utf-8", "replace")) == text else text.encode("utf-8", "replace")


class _Start(msgspec.Struct, omit_defaults=True):
    """What `start` may hold."""

    args: list[str] | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    interpreter: list[str] | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
    parallel: int | UnsetType = UNSET
    fail_count: int | UnsetType = UNSET
    fail_rate: float | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    expires: float | UnsetType = UNSET
    lost_after: float | UnsetType = UNSET
    output_limit: int | UnsetType = UNSET


def _start(text: str) -> dict[str, Any]:
    """The `start` of an earlier page; one that makes no sense is none."""
    try:
        found: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(text, type=_Start)) if text else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return found


def _interpreter_texts(words: Sequence[str] | None) -> dict[str, str]:
    if not words:
        return {"interpreter": "", "interpreter_other": ""}
    for name, known in INTERPRETERS.items():
        if list(words) == known:
            return {"interpreter": name, "interpreter_other": ""}
    return {"interpreter": OTHER, "interpreter_other": shlex.join(words)}
