"""The built wheel, installed into an environment of its own, works in any folder as a checkout does."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support import userlands
from tests.support.paths import ROOT
from tests.support.wheels import wheel_of
from toolchain import __version__, architecture, board, files
from toolchain.backends import backend_of
from toolchain.compile.applicable_records import shipped_records
from toolchain.containers import recipe as recipes
from toolchain.native import programs

# Where the installed package says that its things are; run outside the checkout.
LOOKS = """
import json
from toolchain import board, resources
from toolchain.backends import backend_of
from toolchain.compile.applicable_records import shipped_records
from toolchain.containers import recipe as recipes
local = board.load("local").resolved()
shipped = shipped_records(backend_of(local))
print(json.dumps({
    "package": str(resources.PACKAGE),
    "images": {name: one.digest(one.arguments) for name, one in recipes.recipes().items()},
    "virtual": recipes.read(resources.ROOT / "docker/board/Dockerfile", resources.ROOT).digest({}),
    "records": len(shipped.trials) if shipped else 0,
    "manual": resources.manual("adding-a-board"),
}))
"""


def run(*arguments, cwd=ROOT, **variables):
    """Run a program with the least of an environment; return what it printed."""
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables}
    completed = subprocess.run([*map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return venv_with(wheel, tmp_path_factory.mktemp("installed"))


def venv_with(wheel, folder):
    """Make an environment with a wheel, whose dependencies are those of this environment; return its programs."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    pip = [sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    # Only folders that Python itself puts on its path are searched for .pth files: the checkout's stays unread.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin"


@pytest.fixture
def here(installed, tmp_path):
    """Run the installed programs from an empty folder, by a user who has nothing yet but the cache, and no make."""
    empty, bin_folder = tmp_path / "empty", tmp_path / "bin"
    empty.mkdir()
    bin_folder.mkdir()
    (bin_folder / "make").write_text("#!/bin/sh\necho make is not here >&2; exit 127\n")
    (bin_folder / "make").chmod(0o755)
    variables = {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "TOOLCHAIN_CACHE": str(files.cache_root()),
    }
    return lambda program, *arguments: run(installed / program, *arguments, cwd=empty, **variables)


def test_commands(here):
    assert here("toolchain", "--version").split()[-1] == __version__
    assert {board_type["name"] for board_type in json.loads(here("toolchain", "board", "list", "--json"))} == set(
        board.names()
    )
    assert "make setup" not in here("toolchain", "doctor")


def test_deploy_from_an_empty_folder(here, tmp_path):
    """The records that come with the toolchain are applied to it where they suit this machine."""
    report, bundle = tmp_path / "report.json", tmp_path / "bundle"
    here("toolchain", "deploy", "mobilenet", "--budget", "0.1", "--json", report, "--output", bundle)
    assert json.loads(report.read_text())["outputs"]["ok"]
    applied = json.loads((bundle / "manifest.json").read_text())["records"]
    suiting = shipped_records(backend_of(board.load("local").resolved()))
    assert (applied["shipped"] > 0) == (suiting is not None)


def test_all_that_lies_beside_the_code_is_the_checkouts(here, installed):
    report = json.loads(here("python", "-c", LOOKS))
    assert report["package"].startswith(str(installed.parent))
    local = board.load("local").resolved()
    shipped = shipped_records(backend_of(local))
    assert report["records"] == (len(shipped.trials) if shipped else 0)
    assert report["images"] == {name: recipe.digest(recipe.arguments) for name, recipe in recipes.recipes().items()}
    assert report["virtual"] == recipes.read(ROOT / "docker/board/Dockerfile", ROOT).digest({})
    assert Path(report["manual"]).read_bytes() == (ROOT / "docs/adding-a-board.md").read_bytes()


def test_nothing_of_the_user_goes_into_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        data = [Path(name).relative_to("toolchain/_data") for name in archive.namelist() if "/_data/" in name]
    ours = [path for folder in ("boards", "docker", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()]
    expected_files = {path.relative_to(ROOT) for path in ours}
    of_user = {path for path in expected_files if path.parts[1] in {"certs", "ndk"}}
    assert {path for path in data if len(path.parts) > 1} == expected_files - of_user


@pytest.mark.parametrize("source", ["image", "sdist"])
def test_the_same_wheel_from_less_than_a_checkout(wheel, tmp_path, source):
    """The image of the toolchain and the source distribution have all that a wheel is made of."""
    tree = tmp_path / "tree"
    if source == "image":
        recipes.recipe("host").copy(tree, (), None)
    else:
        run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path)
        [path] = tmp_path.glob("*.tar.gz")
        tree.mkdir()
        run("tar", "--extract", "--strip-components=1", "--file", path, "--directory", tree)
    assert contents(wheel_of(tree, tmp_path)) == contents(wheel)


# --- with device programs ------------------------------------------------------------------------------------------

OWN = architecture.of_machine(platform.machine()).triple


@pytest.fixture(scope="module")
def full_wheel(tmp_path_factory):
    """The wheel of `make wheel`, with the programs for this machine alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLCHAIN_WHEEL_PROGRAMS", OWN)
        return wheel_of(ROOT, tmp_path_factory.mktemp("full"))


def test_deploy_without_a_compiler(full_wheel, tmp_path):
    """The first deploy after `pip install`, with an empty cache: nothing but Python and a shell's tools is there."""
    bin_folder = venv_with(full_wheel, tmp_path / "installed")
    tools = userlands.busybox(tmp_path / "tools")
    assert not [name for name in ("cc", "c++", "g++", "clang", "make", "cmake") if (tools / name).exists()]
    variables = {"HOME": str(tmp_path), "PATH": str(tools), "TOOLCHAIN_CACHE": str(tmp_path / "cache")}
    report, bundle = tmp_path / "report.json", tmp_path / "bundle"
    command = ["deploy", "mlp", "--board", "local", "--budget", "0.1", "--json", report, "--output", bundle]
    run(bin_folder / "toolchain", *command, cwd=tmp_path, **variables)
    assert json.loads(report.read_text())["outputs"]["ok"]
    assert json.loads((bundle / "manifest.json").read_text())["compiler"]["compiler"].startswith("zig ")
    builds = sorted(path.name for path in (tmp_path / "cache" / "device").iterdir())
    assert [name.rpartition("-")[0] for name in builds] == [f"runner-{OWN}"]  # no objects: nothing was compiled


def test_its_programs_are_those_of_this_checkout(full_wheel, program):
    with zipfile.ZipFile(full_wheel) as archive:
        packed = json.loads(archive.read("toolchain/_data/programs/manifest.json"))["programs"]
        for name, entry in packed.items():
            inside = archive.getinfo(f"toolchain/_data/programs/{name}/{name.partition('-')[0]}")
            assert files.sha256_bytes(archive.read(inside)) == entry["sha256"]
    assert packed[f"runner-{OWN}"]["sha256"] == program.sha256
    assert {entry["built_from"]["ziglang"] for entry in packed.values()} == {importlib.metadata.version("ziglang")}


@pytest.mark.nightly  # all programs are compiled a second time
@pytest.mark.parametrize("triple", architecture.PROGRAM_TRIPLES)
def test_a_rebuild_gives_the_same_programs(triple, tmp_path, monkeypatch):
    machine = architecture.of_programs(triple).machine
    first = [programs.build(name, triple, machine).sha256 for name in programs.PROGRAMS]
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "another, longer cache"))
    assert [programs.build(name, triple, machine).sha256 for name in programs.PROGRAMS] == first


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {member.filename: member.CRC for member in archive.infolist()}
