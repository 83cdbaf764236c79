"""Draws what the documents take from the code, between the marks `<!-- NAME: … -->` and `<!-- end of NAME -->`.

The life of a run comes from the table in master/lifecycle.py, the settings from common/config.py.
`draw.py` rewrites the pages, `draw.py --check` tells which are stale and ends with 1.
"""

from __future__ import annotations

import re
import sys
import typing
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from common import config, model  # noqa: E402 (the path comes first)
from master import lifecycle  # noqa: E402

FINAL = sorted(model.FINAL_STATES, key=list(model.RunState).index)


def words(event: type) -> str:
    """`LeaseEnd` as people say it: `lease end`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", event.__name__).lower()


def lifecycle_diagram() -> str:
    """The states and what leads from one to another, as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (state, event), (_, targets) in lifecycle.TABLE.items():
        for target in sorted(targets, key=list(model.RunState).index):
            arrows[state.value, target.value].append(words(event))
    # What leads from every final state to the same place is drawn once.
    common = set.intersection(*({(to, *arrows[a, to]) for (a, to) in arrows if a == state.value} for state in FINAL))
    lines = ["stateDiagram-v2", "    [*] --> delayed", "    [*] --> ready"]
    lines += ["    state final {", *(f"        {state.value}" for state in FINAL), "    }"]
    for (source, target), events in arrows.items():
        if source != target and (source not in FINAL or (target, *events) not in common):
            lines.append(f"    {source} --> {target}: {', '.join(events)}")
    lines += [f"    final --> {target}: {', '.join(events)}" for target, *events in sorted(common)]
    # An arrow from a state to itself hides its neighbour in the drawing, so these are told in words.
    noted = [f"`{a}`: {', '.join(events)}" for (a, to), events in arrows.items() if a == to]
    return "```mermaid\n" + "\n".join(lines) + f"\n```\n\nNoted without leaving the state: {'; '.join(noted)}."


def shown(value: object) -> str:
    """A default as people write it; whole mebibytes and kibibytes with their unit."""
    if isinstance(value, int):
        for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= size and value % size == 0:
                return f"{value} ({value // size} {unit})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_table() -> str:
    """Every setting with its variable, default and meaning."""
    rows = ["| setting | environment variable | default | meaning |", "|---|---|---|---|"]
    hints = typing.get_type_hints(config.Settings, include_extras=True)
    for name in config.SETTINGS:
        texts = [note.description for note in hints[name].__metadata__ if getattr(note, "description", None)]
        default = shown(getattr(config.Settings(), name))
        rows.append(f"| `{name}` | `MUSTER_{name.upper()}` | {default} | {'; '.join(texts)} |")
    return "\n".join(rows)


DRAWINGS: dict[str, tuple[str, Callable[[], str]]] = {
    "lifecycle": ("concepts.md", lifecycle_diagram),
    "settings": ("settings.md", settings_table),
}


def main(arguments: list[str]) -> int:
    """Rewrite the drawings, or with `--check` compare them."""
    stale = []
    for name, (page, draw) in DRAWINGS.items():
        path = DOCS / page
        before = path.read_text("utf-8")
        head, marks, rest = re.split(rf"(<!-- {name}: [^>]* -->\n)", before, maxsplit=1)
        end = f"\n<!-- end of {name} -->"
        if end not in rest:
            raise SystemExit(f"{page}: the mark {end.strip()} is missing; nothing was drawn")
        after = head + marks + draw() + end + rest.partition(end)[2]
        if after != before:
            stale.append(page)
            if "--check" not in arguments:
                path.write_text(after, "utf-8")
    if stale and "--check" in arguments:
        print(f"stale, run scripts/docs: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
