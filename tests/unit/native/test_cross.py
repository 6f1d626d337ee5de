from __future__ import annotations

import ctypes
import dataclasses
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import board, files
from toolchain.architecture import GLIBC
from toolchain.errors import BuildError, InputError
from toolchain.native import cross, elf
from toolchain.native.cross import ContainerCross, HostCross

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
    assert "install pdp11-unknown-none-g++" in caught.value.hint


@pytest.mark.parametrize(
    ("triple", "compiler"),
    [
        (OWN.triple, "c++"),
        ("s390x-linux-gnu", "s390x-linux-gnu-g++"),
        ("arm-linux-gnueabihf", "arm-linux-gnueabihf-g++"),
    ],
)
def test_which_compiler(triple, compiler):
    assert HostCross(triple).compiler == compiler


def test_without_a_compiler_zig_links(tmp_path, objects, monkeypatch):
    """As on a machine with nothing but Python; the cache and the folder leave no trace in the library."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert OWN.describe().compiler.startswith("zig ")
    OWN.link(tmp_path / "model.so", objects)
    assert ctypes.CDLL(str(tmp_path / "model.so")).f(ctypes.c_double(27.0)) == 6
    assert elf.version_key(elf.minimum_glibc(tmp_path / "model.so") or "0") <= elf.version_key(GLIBC)
    content = (tmp_path / "model.so").read_bytes()
    assert not [folder for folder in (tmp_path, files.cache_root()) if str(folder).encode() in content]


def test_zig_links_where_it_is_chosen_and_makes_the_same_bytes(tmp_path, objects, monkeypatch):
    chosen = cross.choose(board.load("local").resolved(), "zig")
    chosen.link(tmp_path / "chosen.so", objects)
    monkeypatch.setenv("PATH", str(tmp_path))
    OWN.link(tmp_path / "model.so", objects)
    assert chosen.describe() == OWN.describe()
    assert (tmp_path / "chosen.so").read_bytes() == (tmp_path / "model.so").read_bytes()


def test_zig_is_not_chosen_for_android():
    android = dataclasses.replace(board.load("rpi4").resolved(), triple="aarch64-linux-android24")
    with pytest.raises(InputError, match="no C library for the triple aarch64-linux-android24"):
        cross.choose(android, "zig")


def test_a_compiler_that_a_board_file_names_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="pdp11-g"):
        HostCross(OWN.triple, "pdp11-g++").describe()


def test_description_is_the_compilers_own_first_line():
    first = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    assert OWN.describe() == cross.Description(first, image="")


def test_a_compiler_without_a_word(tmp_path, monkeypatch):
    silent = tmp_path / "silent-board-g++"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BuildError, match="does not print its version"):
        HostCross("silent-board").describe()


def test_run_gives_the_output_and_keeps_the_time_limit():
    assert OWN.run(["echo", "made"]).stdout == "made\n"
    with pytest.raises(BuildError, match="did not finish"):
        OWN.run(["sleep", "60"], timeout=0.1)


# --- many at a time ----------------------------------------------------------------------------------------------


def test_many_links_are_the_same_bytes_as_one(tmp_path, objects):
    OWN.link(tmp_path / "model.so", objects)
    folders = [tmp_path / f"{number}" for number in range(5)]
    for folder in folders:
        folder.mkdir()
    assert OWN.link_all([(folder / "model.so", objects) for folder in folders]) == [None] * 5
    assert {(folder / "model.so").read_bytes() for folder in folders} == {(tmp_path / "model.so").read_bytes()}


def test_one_failing_link_fails_alone(tmp_path, objects):
    pairs = [(tmp_path / "a.so", objects), (tmp_path / "b.so", [*objects, objects[0]]), (tmp_path / "c.so", objects)]
    first, second, third = OWN.link_all(pairs)
    assert (first, third) == (None, None)
    assert "failed with exit code" in second.message
    assert "twice" in second.details
    assert [path.exists() for path, _ in pairs] == [True, False, True]


def test_a_hanging_link_fails_alone_and_leaves_no_part(tmp_path, objects):
    driver = tmp_path / "driver"
    driver.write_text('#!/bin/sh\ncase "$*" in *slow.so*) echo part >"$4"; exec sleep 600;; esac\nexec c++ "$@"\n')
    driver.chmod(0o755)
    pairs = [(tmp_path / "slow.so", objects), (tmp_path / "quick.so", objects)]
    slow, quick = HostCross(OWN.triple, str(driver)).link_all(pairs, timeout=3.0)
    assert "did not finish within 3 s" in slow.message
    assert quick is None
    assert [path.exists() for path, _ in pairs] == [False, True]


def test_a_missing_compiler_fails_each_link(tmp_path, objects):
    found = MISSING.link_all([(tmp_path / "a.so", objects), (tmp_path / "b.so", objects)])
    assert [fault.message.split(" is ")[1] for fault in found] == ["not installed here"] * 2


@pytest.mark.parametrize("place", [OWN, ContainerCross("aarch64-linux-gnu", "none")])
def test_no_links(place):
    assert place.link_all([]) == []


# --- which one ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "where", "expected"),
    [
        ("rpi4", "", ContainerCross("aarch64-linux-gnu", "mali")),
        ("rpi4", "container", ContainerCross("aarch64-linux-gnu", "mali")),
        ("rpi4", "host", HostCross("aarch64-linux-gnu")),
        ("pynq", "", ContainerCross("arm-linux-gnueabihf", "pynq")),
        ("x86_64", "", HostCross("x86_64-linux-gnu")),
        ("x86_64", "container", ContainerCross("x86_64-linux-gnu", "host")),
    ],
)
def test_the_board_file_chooses_unless_the_command_line_does(name, where, expected):
    assert cross.choose(board.load(name), where) == expected


def test_a_board_without_an_image():
    with pytest.raises(InputError, match="board local has no image with a compiler") as caught:
        cross.choose(board.load("local").resolved(), "container")
    assert "--toolchain host" in caught.value.hint


def test_the_board_files_own_compiler(tmp_path):
    text = (ROOT / "boards" / "rpi4.toml").read_text()
    (tmp_path / "own.toml").write_text('compiler = "aarch64-linux-gnu-g++-12"\n' + text)
    own = board.load(str(tmp_path / "own.toml"))
    assert {cross.choose(own, where).compiler for where in ("container", "host")} == {"aarch64-linux-gnu-g++-12"}


# --- Android -----------------------------------------------------------------------------------------------------

ANDROID = HostCross("aarch64-linux-android24")


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """An object for 64-bit Arm, as TVM writes it: it needs the math library and a symbol of the process."""
    compiler = shutil.which("aarch64-linux-gnu-g++")
    require("the GNU compiler for aarch64", "g++-aarch64-linux-gnu", present=compiler is not None)
    monkeypatch.delenv(cross.NDK_VARIABLE, raising=False)
    source = 'extern "C" { float expf(float); void outer(); float f(float x) { outer(); return expf(x); } }'
    path = tmp_path / "f.o"
    subprocess.run([compiler, "-c", "-O2", "-fPIC", "-x", "c++", "-", "-o", path], input=source, text=True, check=True)
    return path


def linked(tmp_path: Path, objects: list[Path]) -> Path:
    (tmp_path / "out").mkdir()
    ANDROID.link(tmp_path / "out" / "model.so", objects)
    return tmp_path / "out" / "model.so"


def test_a_library_of_androids_shape(tmp_path, foreign):
    library = linked(tmp_path, [foreign])
    with library.open("rb") as stream:
        file = ELFFile(stream)
        dynamic = next(section for section in file.iter_sections() if isinstance(section, DynamicSection))
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        pages = {segment["p_align"] for segment in file.iter_segments("PT_LOAD")}
        names = [tag.soname for tag in dynamic.iter_tags("DT_SONAME")]
        assert file["e_machine"] == "EM_AARCH64"
        assert file.get_section_by_name(".gnu.hash") is not None
        assert file.get_section_by_name(".hash") is None
    assert sorted(needed) == ["libc.so", "libdl.so", "libm.so"]
    assert pages == {16384}
    assert names == ["model.so"]
    assert elf.minimum_glibc(library) == ""
    assert [path.name for path in library.parent.iterdir()] == ["model.so"]


def test_many_of_androids_shape(tmp_path, foreign):
    """Each is called as in its own folder: the name is part of it."""
    one = linked(tmp_path, [foreign])
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    assert ANDROID.link_all([(folder / "model.so", [foreign]) for folder in folders]) == [None, None]
    assert {(folder / "model.so").read_bytes() for folder in folders} == {one.read_bytes()}
    assert [path.name for path in folders[0].iterdir()] == ["model.so"]


def test_the_ndks_compiler_is_asked_for_the_same(tmp_path, monkeypatch):
    """A driver of another name is taken for the NDK's, which brings Android's libraries itself."""
    said = tmp_path / "said"
    driver = tmp_path / "aarch64-linux-android24-clang++"
    driver.write_text(f'#!/bin/sh\necho "$@" >>{said}\n')
    driver.chmod(0o755)
    monkeypatch.setenv(cross.NDK_VARIABLE, str(driver))
    assert ANDROID.compiler == str(driver)
    assert HostCross("aarch64-linux-gnu").compiler == "aarch64-linux-gnu-g++"
    ANDROID.link(tmp_path / "model.so", [tmp_path / "a.o"])
    words = said.read_text().split()
    assert "-Wl,-z,max-page-size=16384" in words
    assert "-Wl,-soname,model.so" in words
    assert "-nostdlib" not in words


def test_an_ndk_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv(cross.NDK_VARIABLE, str(tmp_path / "clang++"))
    with pytest.raises(BuildError, match=r"clang\+\+ is not installed here"):
        ANDROID.describe()
