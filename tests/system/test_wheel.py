import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ("common", "master", "agent", "webserver", "muster", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the source without asking any package index."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    done = subprocess.run([sys.executable, "-P", "-c", build], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built


def run_installed(wheel: Path, folder: Path, code: str) -> str:
    """Runs `code` as if the wheel were installed, from a folder with a package `common` of somebody else."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    (folder / "site/common").mkdir()
    (folder / "site/common/__init__.py").write_text("raise ImportError('not ours')")
    environ = {**os.environ, "PYTHONPATH": str(folder / "site")}
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_takes_no_name_but_its_own(wheel: Path) -> None:
    assert wheel.name == "muster_run-0.1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"muster", "muster_run-0.1.0.dist-info"}
    assert not [name for name in names if "tests" in name]


def test_it_holds_every_source_file_the_types_and_the_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for part in ("common", "master", "agent", "webserver", "muster"):
        for path in (ROOT / part).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and ROOT / "webserver/assets" not in path.parents:
                inside = path.relative_to(ROOT).as_posix()
                assert (inside if part == "muster" else f"muster/_app/{inside}") in names
    assert "muster_run-0.1.0.dist-info/licenses/LICENSE" in names


def test_the_command_finds_its_own_parts(wheel: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['muster', '--help']\n"
        "from muster.__main__ import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "import common, master; print(common.__file__); print(master.__file__)"
    )
    out = run_installed(wheel, tmp_path, code)
    assert "Usage: muster" in out
    parts = tmp_path / "site/muster/_app"
    assert out.splitlines()[-2:] == [f"{parts}/common/__init__.py", f"{parts}/master/__init__.py"]


def test_the_client_needs_neither_the_parts_nor_the_path(wheel: Path, tmp_path: Path) -> None:
    code = "import sys; before = sys.path[:]; import muster.client; assert sys.path == before; print('fine')"
    assert run_installed(wheel, tmp_path, code) == "fine\n"
