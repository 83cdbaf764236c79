"""The rules of the source tree. Each test is one rule, and its message names every place that breaks it."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("common", "master", "agent", "webserver", "muster")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> list[Path]:
    """The Python files below `folders`, without generated ones."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def nodes(*folders: str) -> Iterator[tuple[Path, ast.AST]]:
    for path in sources(*folders):
        for node in ast.walk(tree_of(path)):
            yield path, node


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def assert_none(broken: list[str], rule: str) -> None:
    if broken:
        pytest.fail(f"{rule}:\n  " + "\n  ".join(broken), pytrace=False)


def run_tool(*command: str) -> None:
    environ = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command[1:])}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_finds_nothing() -> None:
    run_tool(sys.executable, "-m", "ruff", "check", "--output-format", "concise", ".")


def test_the_source_is_formatted() -> None:
    run_tool(sys.executable, "-m", "ruff", "format", "--check", ".")


@pytest.mark.timeout(600)
def test_types_hold_in_strict_mode() -> None:
    run_tool(sys.executable, "-m", "mypy")


def test_nobody_imports_what_it_must_not() -> None:
    run_tool(sys.executable, str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache")


@pytest.mark.parametrize(
    "module", ["agent.shepherd", "muster.client", "muster.__main__", "common.log", "common.faults"]
)
def test_needs_the_standard_library_only(module: str) -> None:
    # -S leaves installed packages out of the path, so importing one of them fails.
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}"
    run_tool(sys.executable, "-I", "-S", "-c", code)


def test_the_client_leaves_the_path_alone() -> None:
    code = "import sys; before = sys.path[:]; import muster.client; assert sys.path == before, sys.path"
    run_tool(sys.executable, "-c", code)


def percentile(numbers: list[int], share: float) -> int:
    return sorted(numbers)[min(len(numbers) - 1, int(len(numbers) * share))] if numbers else 0


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in sources(*PARTS)}
    too_long = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > 500]
    assert_none(too_long, "a module has at most 500 lines")
    p90 = percentile(list(lengths.values()), 0.9)
    longest = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > 350]
    assert_none(longest if p90 > 350 else [], f"nine modules of ten have at most 350 lines, now {p90}; shorten")


def test_functions_are_short() -> None:
    lengths: dict[str, int] = {}
    for path, node in nodes(*PARTS):
        # A migration is a list of statements, written once and never touched again.
        if isinstance(node, Function) and node.end_lineno is not None and "migrations" not in path.parts:
            lengths[f"{place(path, node)} {node.name}"] = node.end_lineno - node.lineno + 1
    too_long = [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > 50]
    assert_none(too_long, "a function has at most 50 lines")
    p90 = percentile(list(lengths.values()), 0.9)
    assert p90 <= 25, f"nine functions of ten have at most 25 lines, now {p90}"


def test_scripts_are_short_executable_and_described() -> None:
    listed = (ROOT / "scripts/README.md").read_text("utf-8")
    broken = []
    for path in sorted((ROOT / "scripts").iterdir()):
        if path.name == "README.md" or path.name.startswith((".", "__")):
            continue
        if len(path.read_text("utf-8").splitlines()) >= 40:
            broken.append(f"{path.name}: 40 lines or more")
        if not os.access(path, os.X_OK):
            broken.append(f"{path.name}: not executable")
        if f"`{path.name}" not in listed:
            broken.append(f"{path.name}: not in scripts/README.md")
    assert_none(broken, "scripts stay below 40 lines, executable, and listed")


def test_no_unit_or_store_test_waits_for_time_to_pass() -> None:
    broken = [
        place(path, node)
        for path, node in nodes("tests/unit", "tests/store")
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) == "sleep" or getattr(node.func, "id", None) == "sleep")
    ]
    assert_none(broken, "unit and store tests wait for events or move a manual clock; they never sleep")


def test_nothing_is_monkey_patched() -> None:
    broken = [
        place(path, node)
        for path, node in nodes(*PARTS, "tests")
        if (
            isinstance(node, ast.ImportFrom) and node.module == "gevent" and any(n.name == "monkey" for n in node.names)
        )
        or (isinstance(node, ast.ImportFrom) and node.module == "gevent.monkey")
        or (isinstance(node, ast.Import) and any(name.name == "gevent.monkey" for name in node.names))
    ]
    assert_none(broken, "no process patches the standard library: threads must stay threads")


def test_catching_everything_is_explained() -> None:
    broken = []
    for path, node in nodes(*PARTS):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = getattr(node.type, "id", None) if node.type is not None else "BaseException"
        reraised = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
        if caught not in ("Exception", "BaseException") or reraised:
            continue
        lines = path.read_text("utf-8").splitlines()
        if not any("#" in line for line in lines[node.lineno - 2 : node.lineno + 1]):
            broken.append(place(path, node))
    assert_none(broken, "a broad except belongs at the edge of a loop or a door, with a comment that says so")


def test_names_say_what_things_are() -> None:
    banned = {"manager", "handler", "util", "utils", "helper", "helpers"}
    broken = []
    for path, node in nodes(*PARTS):
        if isinstance(node, Function | ast.ClassDef):
            words = re.findall(r"[A-Z]?[a-z]+", node.name)
            if banned & {word.lower() for word in words}:
                broken.append(f"{place(path, node)} {node.name}")
    for path in sources(*PARTS):
        if path.stem in banned | {"data", "info", "misc", "tools"}:
            broken.append(str(path.relative_to(ROOT)))
    assert_none(broken, "manager, handler, util, helper say nothing: name the role")


def test_what_the_documents_draw_from_the_code_is_fresh() -> None:
    run_tool(sys.executable, "docs/draw.py", "--check")


def setup_cfg() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg", "utf-8")
    return parsed


def test_every_package_is_in_the_wheel() -> None:
    listed = set(setup_cfg()["options"]["packages"].split())
    found = set()
    for path in sources(*PARTS):
        if path.parent == ROOT / "webserver/assets":
            continue  # a tool of whoever changes the source
        package = ".".join(path.parent.relative_to(ROOT).parts)
        found.add(package if package.split(".")[0] == "muster" else f"muster._app.{package}")
    missing = [f"missing: {name}" for name in sorted(found - listed)]
    assert_none(missing + [f"gone: {name}" for name in sorted(listed - found)], "packages listed in setup.cfg")


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_every_locked_package_is_pinned_by_hash_and_names_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text("utf-8")
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.M))
    bare = [entry.split()[0] for entry in entries if entry.strip() and "--hash=sha256:" not in entry]
    assert_none(bare, f"{lock}: pinned by hash")
    assert "://" not in text


def test_every_requirement_is_locked() -> None:
    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text("utf-8"), flags=re.M))
    wanted = re.findall(r"^\s*([A-Za-z0-9-]+)", setup_cfg()["options"]["install_requires"], flags=re.M)
    assert_none(sorted({name.lower() for name in wanted} - pinned), "run scripts/lock: not in requirements.lock")
