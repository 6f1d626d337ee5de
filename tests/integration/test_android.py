"""Android without an Android: what an NDK would be asked for, what is linked, and a device with its shell and tools.

Debian has no NDK. The GNU compiler stands in for its driver, with TVM's code for Android switched on; the C library's
own functions are held against a list of what Android's has. Debian's toybox and mksh are Android's tools and shell.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support import sshd, userlands
from tests.support.commands import toolchain
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import board
from toolchain.architecture import AARCH64
from toolchain.native import cross, elf
from toolchain.native import programs as device_runtime
from toolchain.virtual import emulation

TRIPLE = "aarch64-linux-android24"
GNU = Path("/usr/aarch64-linux-gnu")
BOARDS = ("android-arm64", "android-mali")
ALL = (device_runtime.LIBRARY, *device_runtime.PROGRAMS)

# What the NDK's headers say and GNU's do not, as far as TVM asks for it.
BIONIC = """#pragma once
#include <pthread.h>
#include <unistd.h>
static inline pid_t pthread_gettid_np(pthread_t) { return gettid(); }
"""
DRIVER = """#!/bin/sh
exec aarch64-linux-gnu-g++ -D__ANDROID__ -D__ANDROID_API__=24 -I{folder} -include {folder}/bionic.h "$@"
"""


def require_compiler():
    require("the GNU compiler for aarch64", "g++-aarch64-linux-gnu", shutil.which("aarch64-linux-gnu-g++") is not None)


@pytest.fixture(scope="module")
def ndk(tmp_path_factory):
    """A driver that stands in for the NDK's."""
    require_compiler()
    require("qemu-aarch64-static", "qemu-user-static", shutil.which("qemu-aarch64-static") is not None)
    folder = tmp_path_factory.mktemp("ndk")
    (folder / "android").mkdir()
    (folder / "android" / "api-level.h").touch()
    (folder / "bionic.h").write_text(BIONIC)
    driver = folder / f"{TRIPLE}-clang++"
    driver.write_text(DRIVER.format(folder=folder))
    driver.chmod(0o755)
    return driver


@pytest.fixture(scope="module")
def programs(ndk):
    """The device programs, made by it; they come from the user's cache if they were built before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cross.NDK_VARIABLE, str(ndk))
        return {name: device_runtime.build(name, TRIPLE, "aarch64") for name in ALL}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A network for each of Android's boards, linked without an NDK."""
    require_compiler()
    folder = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(cross.NDK_VARIABLE, raising=False)
        for name in BOARDS:
            outcome = toolchain("build", "mlp", "--board", name, "--toolchain", "host", "-o", folder / name)
            assert outcome.code == 0, outcome.err
    return {name: folder / name for name in BOARDS}


@dataclass(frozen=True)
class Shape:
    """What a loader is asked for."""

    machine: str
    needed: set[str]
    pages: set[int]
    relro: bool
    bound_now: bool

    @classmethod
    def of(cls, path: Path) -> Shape:
        with path.open("rb") as stream:
            file = ELFFile(stream)
            dynamic = next(section for section in file.iter_sections() if isinstance(section, DynamicSection))
            tags = {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}
            return cls(
                machine=file["e_machine"],
                needed={tag.needed for tag in dynamic.iter_tags("DT_NEEDED")},
                pages={segment["p_align"] for segment in file.iter_segments("PT_LOAD")},
                relro=any(file.iter_segments("PT_GNU_RELRO")),
                bound_now=bool(tags.get("DT_FLAGS", 0) & 8 or tags.get("DT_FLAGS_1", 0) & 1),
            )


# --- what is linked --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_a_networks_library_has_androids_shape(bundles, name):
    library = bundles[name] / "model.so"
    assert Shape.of(library) == Shape("EM_AARCH64", {"libc.so", "libm.so", "libdl.so"}, {16384}, True, True)  # noqa: FBT003
    assert elf.minimum_glibc(library) == ""
    assert json.loads((bundles[name] / "manifest.json").read_text())["glibc"] == ""


@pytest.mark.parametrize("name", ALL)
def test_what_is_compiled_has_androids_shape(programs, name):
    shape = Shape.of(programs[name].path)
    assert (shape.machine, shape.pages, shape.relro, shape.bound_now) == ("EM_AARCH64", {16384}, True, True)
    assert not any(library.startswith(("libstdc++", "libc++")) for library in shape.needed)


def test_the_library_has_no_number(programs, ndk, tmp_path, monkeypatch):
    """An app's package takes libraries whose names end with `.so`, and finds them by these names."""
    monkeypatch.setenv(cross.NDK_VARIABLE, str(ndk))
    assert programs[device_runtime.LIBRARY].path.name == "libedge_model.so"
    outcome = toolchain("sdk", "--board", "android-arm64", "-o", tmp_path / "sdk")
    assert outcome.code == 0, outcome.err
    library = tmp_path / "sdk/lib/libedge_model.so"
    with library.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        assert [tag.soname for tag in dynamic.iter_tags("DT_SONAME")] == ["libedge_model.so"]


@pytest.mark.parametrize("name", device_runtime.PROGRAMS)
def test_a_program_says_what_it_is(programs, name):
    argv = ["qemu-aarch64-static", "-L", GNU, programs[name].path, "--version"]
    report = json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout)
    assert report["machine"] == "aarch64"


# What the programs ask a GNU library for where they ask Android's for something else, or for nothing.
BY_COMPILERS = {"__libc_start_main", "bcmp"}
BY_HEADERS = {
    *("__ctype_tolower_loc", "__ctype_toupper_loc", "__errno_location", "__isoc99_sscanf"),
    *("__fxstat64", "__lxstat64", "__xstat", "__xstat64", "fcntl64"),
}
BY_LIBCXX = {"aligned_alloc", "catclose", "catgets", "catopen", "fseeko64", "ftello64", "strtod_l", "strtof_l"}


@pytest.mark.parametrize("name", ALL)
def test_what_is_compiled_asks_for_nothing_that_android_lacks(name):
    """Its sources call no function that Android 7 lacks, as far as the same sources tell with a GNU library.

    A name that is missing here belongs into the list, if bionic's libc.map.txt, libm.map.txt or libdl.map.txt
    has it for API level 24; else the sources must do without.
    """
    path = device_runtime.build(name, "aarch64-linux-gnu", "aarch64").path
    with path.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        symbols = {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name}
    exported = set((DATA / "bionic-24.txt").read_text().split())
    assert symbols - exported - BY_COMPILERS - BY_HEADERS - BY_LIBCXX - {"__gmon_start__"} == set()


# --- what runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder with GNU's libraries under Android's names."""
    folder = tmp_path_factory.mktemp("libraries")
    for name, real in (("libc.so", "libc.so.6"), ("libm.so", "libm.so.6"), ("libdl.so", "libdl.so.2")):
        (folder / name).symlink_to(GNU / "lib" / real)
    return folder


@pytest.fixture(scope="module")
def device(tmp_path_factory, libraries):
    """An SSH server whose sessions have Android's shell and tools, no others, and a 64-bit Arm machine."""
    recipe = emulation.RECIPES / "qemu-aarch64.conf"
    can_help = recipe.is_file() and os.geteuid() == 0
    require("emulation of arm64", "qemu-user-static", not emulation.fault(AARCH64) or can_help)
    emulation.ensure(AARCH64, lambda _line: None)
    folder = tmp_path_factory.mktemp("android")
    tools = userlands.toybox(folder / "bin")
    toybox, shell = shutil.which("toybox"), shutil.which("mksh")
    (tools / "uname").unlink()
    (tools / "uname").write_text(f'#!{shell}\ncase $1 in -m) echo aarch64;; *) exec {toybox} uname "$@";; esac\n')
    (tools / "uname").chmod(0o755)
    # There is no /tmp, as far as that can be done beside other programs.
    values = f"HOME={folder} PATH={tools} TMPDIR=/nowhere QEMU_LD_PREFIX={GNU} LD_LIBRARY_PATH={libraries}"
    with sshd.running(folder / "sshd", options=f"SetEnv {values}\n") as server:
        yield server


@pytest.fixture
def run_on_device(device, ndk, monkeypatch, tmp_path):
    """Return a function that runs a command for that device, with an NDK."""
    monkeypatch.setenv(cross.NDK_VARIABLE, str(ndk))

    def run(*arguments: object, name: str = "android-arm64"):
        more = ["--board", name, "--host", device.host, "-i", device.key_file, "--known-hosts", device.known_hosts]
        return toolchain(*arguments, *more, "--root", tmp_path / "root")

    return run


def test_networks_are_deployed_and_taken_back(run_on_device, bundles, programs, tmp_path):
    """Deploys, switches, a roll-back and a benchmark, with nothing but toybox and Android's shell there."""
    del programs  # built beforehand, so that this test is quick
    outcome = run_on_device("deploy", bundles["android-arm64"], "--budget", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert (report["outputs"]["ok"], report["host"]["machine"], report["board"]) == (True, "aarch64", "android-arm64")
    again = run_on_device(
        "deploy", "mlp", "--seed", 3, "--toolchain", "host", "--budget", 0
    )  # linked by the NDK's stand-in
    assert again.code == 0, again.err
    current = tmp_path / "root" / "current"
    assert current.readlink() == Path("generations/2")
    back = run_on_device("rollback")
    assert back.code == 0, back.err
    assert current.readlink() == Path("generations/1")
    outcome = run_on_device("bench", "--budget", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["bundle_digest"] == report["bundle_digest"]


def test_a_network_for_a_gpu_without_a_driver_says_so(run_on_device, bundles, programs):
    """Its library is loaded; then its kernels need what only a real device has."""
    del programs
    outcome = run_on_device("deploy", bundles["android-mali"], "--budget", 0, name="android-mali")
    assert outcome.code == 4
    assert "no OpenCL library on this device" in outcome.err
    assert "/vendor/lib64/libOpenCL.so" in outcome.err


def test_a_board_server_serves_there(run_on_device, programs):
    del programs
    outcome = run_on_device("hardware", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)[0]["hardware"]["machine"] == board.load("android-arm64").machine
