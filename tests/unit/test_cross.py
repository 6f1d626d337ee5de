from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest

from toolchain import cross
from toolchain.cross import HostCross
from toolchain.errors import BuildError

OWN = HostCross(f"{platform.machine()}-linux-gnu")
MISSING = HostCross("pdp11-unknown-none")


@pytest.fixture
def objects(tmp_path) -> list[Path]:
    """Two objects, of which one needs the other and the C library."""
    sources = {"twice": "int twice(int x) { return 2 * x; }"}
    sources["both"] = '#include <cmath>\nint twice(int); extern "C" int f(double x) { return twice(std::cbrt(x)); }'
    return [compiled(tmp_path, name, source) for name, source in sources.items()]


def compiled(folder: Path, name: str, source: str) -> Path:
    path = folder / f"{name}.o"
    subprocess.run(["c++", "-c", "-fPIC", "-x", "c++", "-", "-o", path], input=source, text=True, check=True)
    return path


def test_linked_objects_run(tmp_path, objects):
    OWN.link(tmp_path / "model.so", objects)
    assert ctypes.CDLL(str(tmp_path / "model.so")).f(ctypes.c_double(27.0)) == 6


def test_the_library_is_the_same_in_another_folder(tmp_path, objects):
    made = []
    for name in ("a", "a-much-longer-name"):
        (tmp_path / name).mkdir()
        moved = [Path(path.rename(tmp_path / name / path.name)) for path in objects]
        OWN.link(tmp_path / name / "model.so", moved)
        made.append((tmp_path / name / "model.so").read_bytes())
        objects = moved
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


def test_refused_objects(tmp_path, objects):
    with pytest.raises(BuildError, match="failed with exit code") as caught:
        OWN.link(tmp_path / "model.so", [*objects, objects[0]])
    assert "twice" in caught.value.details
    assert not (tmp_path / "model.so").exists()


def test_missing_objects(tmp_path):
    with pytest.raises(BuildError, match="failed with exit code"):
        OWN.link(tmp_path / "model.so", [tmp_path / "missing.o"])


@pytest.mark.parametrize("use", [MISSING.describe, lambda: MISSING.link(Path("a.so"), [])])
def test_missing_compiler(use):
    with pytest.raises(BuildError, match=r"pdp11-unknown-none-g\+\+ is not installed") as caught:
        use()
    assert "toolchain doctor" in caught.value.hint


@pytest.mark.parametrize(
    ("triple", "compiler"),
    [
        (OWN.triple, "c++"),
        ("riscv64-linux-gnu", "riscv64-linux-gnu-g++"),
        ("arm-linux-gnueabihf", "arm-linux-gnueabihf-g++"),
    ],
)
def test_which_compiler(triple, compiler):
    assert HostCross(triple).compiler == compiler


def test_description_is_the_compilers_own_first_line():
    first = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    assert OWN.describe() == cross.Description(first, image="")


def test_a_compiler_without_a_word(tmp_path, monkeypatch):
    silent = tmp_path / "silent-board-g++"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BuildError, match="does not say its version"):
        HostCross("silent-board").describe()


def test_run_gives_the_output_and_keeps_the_time_limit():
    assert OWN.run(["echo", "made"]).stdout == "made\n"
    with pytest.raises(BuildError, match="did not finish"):
        OWN.run(["sleep", "60"], timeout=0.1)
