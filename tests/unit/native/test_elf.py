from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from toolchain import architecture
from toolchain.errors import BuildError, InputError
from toolchain.native import elf

# Symbols whose newest version on x86-64 and aarch64 is that of the glibc that brought them.
SOURCES = {
    "expf": ("float expf(float); float f(float x) { return expf(x); }", "2.27"),
    "gettid": ("int gettid(void); int f(void) { return gettid(); }", "2.30"),
    "two": ("float expf(float); int gettid(void); float f(float x) { return expf(x) + gettid(); }", "2.30"),
    "none": ("int f(int x) { return x + 1; }", ""),
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    for name, (source, _) in SOURCES.items():
        argv = ["c++", "-shared", "-fPIC", "-nostartfiles", "-x", "c", "-", "-o", folder / f"{name}.so", "-lm"]
        subprocess.run(argv, input=source, text=True, check=True)
    return folder


@pytest.mark.parametrize("name", SOURCES)
def test_minimum_glibc(libraries, name):
    assert elf.minimum_glibc(libraries / f"{name}.so") == SOURCES[name][1]


def test_what_musl_lacks(libraries, tmp_path):
    assert [elf.foreign_to_musl(libraries / f"{name}.so") for name in SOURCES] == [[]] * len(SOURCES)
    names = ("__tls_get_addr", "_dl_find_object")
    source = "".join(f"int {name}(void); int f{name}(void) {{ return {name}(); }}\n" for name in names)
    argv = ["c++", "-shared", "-fPIC", "-nostartfiles", "-x", "c", "-", "-o", tmp_path / "foreign.so"]
    subprocess.run(argv, input=source, text=True, check=True)
    assert "_dl_find_object" in elf.foreign_to_musl(tmp_path / "foreign.so")
    assert any(name.startswith("ld-linux") for name in elf.foreign_to_musl(tmp_path / "foreign.so"))


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF", b"\x7fELF" + b"\xff" * 60, b"!<arch>\n"])
def test_not_an_elf_file(tmp_path, content):
    (tmp_path / "model.so").write_bytes(content)
    with pytest.raises(BuildError, match=r"model\.so is not a readable ELF file"):
        elf.minimum_glibc(tmp_path / "model.so")
    with pytest.raises(BuildError, match=r"model\.so is not a readable ELF file"):
        elf.foreign_to_musl(tmp_path / "model.so")


def test_no_file(tmp_path):
    with pytest.raises(BuildError, match="not a readable ELF file"):
        elf.minimum_glibc(tmp_path / "missing.so")


def test_a_cut_library_is_named(libraries, tmp_path):
    library = (libraries / "expf.so").read_bytes()
    for length in range(0, len(library) // 2, 501):
        (tmp_path / "cut.so").write_bytes(library[:length])
        with pytest.raises(BuildError):
            elf.minimum_glibc(tmp_path / "cut.so")


@pytest.mark.parametrize(("older", "newer"), [("2.9", "2.27"), ("2.27", "2.27.1"), ("2.40", "3.0")])
def test_versions_are_ordered_by_number(older, newer):
    assert elf.version_key(older) < elf.version_key(newer)


def test_what_is_an_object_of_a_machine(tmp_path, libraries):
    triple = architecture.of_machine(platform.machine()).triple
    path = tmp_path / "one.o"
    subprocess.run(["c++", "-c", "-x", "c", "-", "-o", path], input=SOURCES["none"][0], text=True, check=True)
    assert elf.is_object(path.read_bytes(), triple)
    assert not elf.is_object(path.read_bytes(), "arm-linux-gnueabihf")
    with pytest.raises(InputError, match="'s390x-linux-gnu' is not supported"):
        elf.is_object(path.read_bytes(), "s390x-linux-gnu")
    assert not elf.is_object((libraries / "none.so").read_bytes(), triple)
    assert not elf.is_object(path.read_bytes()[:19], triple)
