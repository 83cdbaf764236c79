"""What a submission would do, said back in words before it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flask_babel import gettext as _
from flask_babel import ngettext

from webserver.pages.filters import duration
from webserver.wording import View

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """`first`: where, how many at a time, when it stops. `notes`: (agent state or `busy`, sentence) of what hinders."""

    first: str
    notes: list[tuple[str, str]]


def spoken(preview: View) -> Plan:
    """The master's preview in the visitor's language."""
    summary = preview["summary"]
    total = summary["total"]
    words = [_where(summary)]
    if 0 < summary["parallel"] < total:
        words.append(_("%(num)s at a time", num=summary["parallel"]))
    elif total > 1:
        words.append(_("all at once"))
    words += _stops(summary)
    return Plan(_(", ").join(words), list(_hindrances(summary, preview["targets"])))


def _where(summary: Mapping[str, Any]) -> str:
    if summary["addressed"]:
        return ngettext("%(num)s host", "%(num)s hosts", summary["total"])
    if summary["total"] == 1:
        return ngettext(
            "any %(count)s of %(num)s host", "any %(count)s of %(num)s hosts", summary["candidates"], count=1
        )
    return _("any %(count)s of %(num)s hosts", count=summary["total"], num=summary["candidates"])


def _stops(summary: Mapping[str, Any]) -> list[str]:
    rules = []
    if summary["fail_count"] > 0:
        rules.append(ngettext("stops after %(num)s failure", "stops after %(num)s failures", summary["fail_count"]))
    if summary["fail_rate"] is not None:
        percent = f"{summary['fail_rate'] * 100:.10g}"
        rules.append(_("stops when more than %(share)s%% have failed", share=percent))
    if not rules:
        return []
    if summary["on_stop"] == "kill":
        rules.append(_("and then ends what still runs"))
    return rules


def _hindrances(summary: Mapping[str, Any], targets: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    named: dict[str, list[str]] = {"offline": [], "draining": [], "conflict": [], "busy": []}
    for target in targets:
        kind = "busy" if target["code"] == "agent_busy" else target["state"]
        named.get(kind, []).append(target["name"])
    until = _(", for %(time)s", time=_span(summary["expires"])) if summary["expires"] else ""
    for state, names in named.items():
        number = summary[state]
        if number:
            said = _addressed(state, number, until) if summary["addressed"] else _of_any(state, number)
            yield state, _("%(sentence)s: %(names)s", sentence=said, names=_list(names, number)) if names else said


def _addressed(state: str, number: int, until: str) -> str:
    if state == "offline":
        return ngettext(
            "%(num)s host is offline and will run it when back%(until)s",
            "%(num)s hosts are offline and will run it when back%(until)s",
            number,
            until=until,
        )
    if state == "draining":
        return ngettext(
            "%(num)s host is draining and will run it when resumed%(until)s",
            "%(num)s hosts are draining and will run it when resumed%(until)s",
            number,
            until=until,
        )
    if state == "conflict":
        return ngettext(
            "%(num)s host is used by two daemons and will run it when one of them is stopped%(until)s",
            "%(num)s hosts are used by two daemons and will run it when one of them is stopped%(until)s",
            number,
            until=until,
        )
    return ngettext(
        "%(num)s host is busy and will run it when it has room",
        "%(num)s hosts are busy and will run it when they have room",
        number,
    )


def _of_any(state: str, number: int) -> str:
    if state == "offline":
        return ngettext("%(num)s of them is offline", "%(num)s of them are offline", number)
    if state == "draining":
        return ngettext("%(num)s of them is draining", "%(num)s of them are draining", number)
    if state == "conflict":
        return ngettext("%(num)s of them is used by two daemons", "%(num)s of them are used by two daemons", number)
    return ngettext("%(num)s of them is busy", "%(num)s of them are busy", number)


def _span(seconds: float) -> str:
    """A time as one says it of a wait: a day is 24 hours, two are two days."""
    hours = int(seconds // 3600)
    return _("%(h)s h", h=hours) if seconds == hours * 3600 and 24 <= hours < 48 else duration(seconds)


def _list(names: list[str], number: int) -> str:
    shown = _(", ").join(names[:_NAMED])
    left = number - min(len(names), _NAMED)
    return (
        shown if left <= 0 else ngettext("%(names)s and %(num)s more", "%(names)s and %(num)s more", left, names=shown)
    )
