"""Brings the catalogues up to date: collects texts, merges them into each messages.po, compiles what is loaded.

`translate.py` rewrites, `translate.py --check` tells what is stale, untranslated or broken, and ends with 1. The pages'
catalogue holds what templates, views and scripts say; scripts get theirs as script.json. The command line has its own.
`translate.py webserver` or `translate.py muster` does it for one of them alone.
"""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir, extract_python
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from muster.words import paragraphs  # noqa: E402 - it lies where the line above points

NO_DATE = datetime(2000, 1, 1, tzinfo=UTC)  # left out of messages.po
LANGUAGES = ("zh_Hans_CN",)
KEYWORDS: dict[str, Any] = {"_": None, "_l": None, "gettext": None, "ngettext": (1, 2), "t": None, "tn": (1, 2)}
METHODS: list[tuple[str, Any]] = [
    ("**.py", "python"),
    ("templates/**.html", "jinja2"),
    ("static/js/**.js", "javascript"),
]
OPTIONS = {
    "templates/**.html": {"trim_blocks": "true", "lstrip_blocks": "true"},
    "static/js/**.js": {"parse_template_string": "true"},
}


@dataclass(frozen=True)
class Domain:
    """A catalogue of its own: what lies below `folder`, without what lies below `but`."""

    folder: Path
    but: tuple[str, ...] = ()
    methods: list[tuple[str, Any]] = field(default_factory=lambda: METHODS)
    keywords: dict[str, Any] = field(default_factory=lambda: KEYWORDS)

    def wanted(self) -> Catalog:
        """Every text that the sources say now."""
        catalogue = Catalog(project="muster", charset="utf-8", fuzzy=False)
        found = extract_from_dir(
            self.folder,
            self.methods,
            OPTIONS,
            self.keywords,
            directory_filter=lambda path: Path(path).name not in self.but,
        )
        for name, _, message, _, context in sorted(found, key=lambda each: (each[0], each[1])):
            place = (Path(self.folder.name, name).as_posix(), 0)
            catalogue.add(message, locations=[place], context=context)
        return catalogue

    def files(self, language: str) -> Iterator[tuple[Path, bytes]]:
        """What the files of a language should hold."""
        place = self.folder / "translations" / language
        po = place / "LC_MESSAGES" / "messages.po"
        catalogue = read_po(io.BytesIO(po.read_bytes()), locale=language) if po.exists() else Catalog(locale=language)
        catalogue.update(self.wanted(), no_fuzzy_matching=True)
        catalogue.obsolete.clear()
        yield po, written(write_po, catalogue, width=120, sort_output=False, include_lineno=False, omit_header=False)
        yield po.with_suffix(".mo"), written(write_mo, catalogue)
        said = {key: text for key, text in of_scripts(catalogue) if text}
        if said:
            yield place / "script.json", json.dumps(said, ensure_ascii=False, indent=0, sort_keys=True).encode() + b"\n"


def of_commands(file: IO[bytes], keywords: Any, tags: Any, options: Any) -> Iterator[tuple[Any, ...]]:
    """What a module of the command line says: marked texts, and the docstrings of commands, which are their help."""
    yield from extract_python(file, keywords, tags, options)
    file.seek(0)
    for node in ast.walk(ast.parse(file.read())):
        if isinstance(node, ast.FunctionDef) and any(map(makes_command, node.decorator_list)):
            for text, _ in paragraphs(ast.get_docstring(node, clean=False) or ""):
                yield node.lineno, "_", [text], []


def makes_command(decorator: ast.expr) -> bool:
    """Whether a function becomes a command by this decorator: `@command(…)`, `@agents.command(…)`, `@group(…)`."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "attr", getattr(called, "id", "")) in ("command", "group")


DOMAINS = (
    Domain(ROOT / "webserver", but=("vendor", "translations", "assets", "node_modules", "__pycache__")),
    Domain(
        ROOT / "muster",
        but=("translations", "__pycache__"),
        methods=[("**.py", of_commands)],
        keywords={"_": None, "ngettext": (1, 2), "Phrase": None},
    ),
)


def written(write: Any, catalogue: Catalog, **options: Any) -> bytes:
    """A catalogue as the bytes of a file; no dates, so that the same texts are the same bytes."""
    catalogue.header_comment = "# Texts of muster. The sources are in English."
    catalogue.creation_date = catalogue.revision_date = NO_DATE
    catalogue.project, catalogue.version, catalogue.fuzzy = "muster", "-", False
    out = io.BytesIO()
    write(out, catalogue, **options)
    lines = out.getvalue()
    if write is write_po:
        lines = b"\n".join(
            line
            for line in lines.split(b"\n")
            if not line.startswith((b'"POT-Creation', b'"PO-Revision', b'"Generated-By'))
        )
    return lines


def of_scripts(catalogue: Catalog) -> Iterator[tuple[str, str]]:
    """What scripts say: the text, or of a plural the form for many, and its translation."""
    for message in catalogue:
        if message.id and any(place.endswith(".js") for place, _ in message.locations):
            one, *many = forms(message.id)
            yield many[0] if many else one, forms(message.string)[-1]


def forms(text: Any) -> list[str]:
    """A text, or all forms of a plural, as a list."""
    return [text] if isinstance(text, str) else list(text or ("",))


def troubles(language: str, domain: Domain) -> Iterator[str]:
    """What is wrong with a language's catalogue."""
    po = domain.folder / "translations" / language / "LC_MESSAGES" / "messages.po"
    catalogue = read_po(io.BytesIO(po.read_bytes()), locale=language)
    for message in catalogue:
        if not message.id:
            continue
        if not all(forms(message.string)):
            yield f"{language}: not translated: {message.id!r}"
        for error in message.check(catalogue):
            yield f"{language}: {message.id!r}: {error}"


def main(check: bool, names: list[str]) -> int:
    """Write or check the domains named, or all; answers the exit code."""
    found = []
    for domain in DOMAINS:
        if names and domain.folder.name not in names:
            continue
        for language in LANGUAGES:
            for path, content in domain.files(language):
                if check and (not path.exists() or path.read_bytes() != content):
                    found.append(f"{path.relative_to(ROOT)} is stale: run scripts/translate")
                elif not check:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            found += troubles(language, domain)
    print("\n".join(found) or "complete")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:], [word for word in sys.argv[1:] if word != "--check"]))
