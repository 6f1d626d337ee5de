"""Building the device programs and keeping them; the programs themselves are in integration/test_device_runtime.py."""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from toolchain import device_runtime, files
from toolchain.errors import BuildError

TRIPLE, MACHINE = "x86_64-linux-gnu", "x86_64"

BUILD = """
import sys
from pathlib import Path
from toolchain import device_runtime
device_runtime._SOURCES = Path(sys.argv[1])
device_runtime._compiler = lambda triple: device_runtime._Compiler(("c++",), (), (), ())
print(device_runtime.build("x86_64-linux-gnu", "x86_64").runner.sha256)
"""

# Programs of one line, and this machine's compiler: what is tested with them is the way to the cache.
LISTS = """
cmake_minimum_required(VERSION 3.24)
project(tiny CXX)
add_executable(runner main.cc)
add_executable(board_server main.cc)
install(TARGETS runner board_server DESTINATION .)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "device"


@pytest.fixture
def tiny_sources(tmp_path, monkeypatch):
    """The programs of one line, for the compiler that is chosen."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(LISTS)
    (folder / "main.cc").write_text("int main() { return 0; }\n")
    monkeypatch.setattr(device_runtime, "_SOURCES", folder)
    return folder


@pytest.fixture
def sources(tiny_sources, monkeypatch):
    """The same, for this machine's compiler."""
    compile_with(monkeypatch, "c++")
    return tiny_sources


def compile_with(monkeypatch, *command: str):
    compiler = device_runtime._Compiler(command, (), (), ())
    monkeypatch.setattr(device_runtime, "_compiler", lambda _triple: compiler)


def make(tell=None):
    return device_runtime.build(TRIPLE, MACHINE, tell)


def no_build(monkeypatch):
    monkeypatch.setattr(device_runtime, "_build_into", lambda *_: pytest.fail("built again"))


def test_real_programs(program):
    """Each is one file that says what it is made of."""
    assert program.sha256 == files.sha256_file(program.path)
    assert os.access(program.path, os.X_OK)
    assert program.machine == platform.machine()
    assert program.glibc.startswith("2.")
    assert program.versions == {"device": "0.1.0", "tvm": "0.27.0.post1", "tvm_ffi": "0.1.14.post1"}


@pytest.mark.usefixtures("sources")
def test_built_once_and_told_once(cache, monkeypatch):
    told = []
    first = make(told.append)
    assert first.runner.path.parent.parent == cache
    assert {path.name for path in first.runner.path.parent.iterdir()} == {"runner", "board_server", "programs.json"}
    assert len(told) == 1
    assert TRIPLE in told[0]
    no_build(monkeypatch)
    assert make(told.append) == first
    assert len(told) == 1
    assert [path.name for path in cache.iterdir()] == [first.runner.path.parent.name]


@pytest.mark.usefixtures("cache")
def test_other_sources_are_other_programs(sources):
    first = make()
    (sources / "main.cc").write_text("int main() { return 1; }\n")
    second = make()
    assert second.runner.path != first.runner.path
    assert second.runner.sha256 != first.runner.sha256


@pytest.mark.parametrize("package", ["apache-tvm", "apache-tvm-ffi", "ziglang"])
def test_other_packages_are_other_programs(monkeypatch, package):
    first = device_runtime._cache_key(device_runtime._compiler(TRIPLE))
    honest = device_runtime.importlib.metadata.version
    monkeypatch.setattr(
        device_runtime.importlib.metadata, "version", lambda name: "9.9" if name == package else honest(name)
    )
    assert device_runtime._cache_key(device_runtime._compiler(TRIPLE)) != first


@pytest.mark.usefixtures("cache", "sources")
@pytest.mark.parametrize("damage", ["truncated", "missing", "no record", "strange record", "foreign"])
def test_damaged_folder_is_built_again(damage):
    first = make()
    folder = first.runner.path.parent
    if damage == "truncated":
        first.runner.path.write_bytes(first.runner.path.read_bytes()[:1000])
    elif damage == "missing":
        first.board_server.path.unlink()
    elif damage == "no record":
        (folder / "programs.json").unlink()
    elif damage == "strange record":
        (folder / "programs.json").write_text("[]")
    else:
        first.runner.path.write_bytes(Path("/bin/sh").read_bytes())
    again = make()
    assert again.runner.path == first.runner.path
    assert again.runner.sha256 == files.sha256_file(again.runner.path)
    subprocess.run([again.runner.path], check=True, timeout=60)
    subprocess.run([again.board_server.path], check=True, timeout=60)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_sources_that_do_not_compile(cache, sources):
    (sources / "main.cc").write_text("int main() { return nothing; }\n")
    with pytest.raises(BuildError, match="cmake failed") as caught:
        make()
    assert "nothing" in caught.value.details
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("sources")
def test_broken_compiler(cache, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho it hurts >&2; exit 1\n")
    broken.chmod(0o755)
    compile_with(monkeypatch, str(broken))
    with pytest.raises(BuildError, match="cmake failed") as caught:
        make()
    assert "it hurts" in caught.value.details
    assert list(cache.iterdir()) == []


def test_missing_package():
    with pytest.raises(BuildError, match="no_such_package is not installed") as caught:
        device_runtime._package_folder("no_such_package")
    assert caught.value.hint == "make setup"


@pytest.mark.usefixtures("cache")
def test_unsupported_triple():
    with pytest.raises(BuildError, match="no device programs for riscv64-linux-gnu") as caught:
        device_runtime.build("riscv64-linux-gnu", "riscv64")
    for triple in ("x86_64-linux-gnu", "aarch64-linux-gnu", "arm-linux-gnueabihf"):
        assert triple in caught.value.details


ANDROID = "aarch64-linux-android24"


@pytest.fixture
def ndk(tmp_path, monkeypatch):
    """Return a function that puts a compiler driver, which makes programs of this machine, in the NDK's place."""
    driver = tmp_path / f"{ANDROID}-clang++"
    said = tmp_path / "said"

    def use(target: str = "aarch64-unknown-linux-android24", version: str = "Android clang version 18.0.1") -> Path:
        lines = ["#!/bin/sh", f'echo "$@" >>{said}', f'case "$*" in --version) echo "{version}"; exit;;']
        lines += [f"-dumpmachine) echo {target}; exit;; esac", 'exec c++ "$@"', ""]
        driver.write_text("\n".join(lines))
        driver.chmod(0o755)
        monkeypatch.setenv("TVM_NDK_CC", str(driver))
        return said

    return use


@pytest.mark.usefixtures("cache")
def test_android_without_an_ndk(monkeypatch):
    monkeypatch.delenv("TVM_NDK_CC", raising=False)
    with pytest.raises(BuildError, match="need Android's NDK") as caught:
        device_runtime.build(ANDROID, "aarch64")
    assert f"set TVM_NDK_CC to {ANDROID}-clang++" in caught.value.hint
    with pytest.raises(BuildError, match="need Android's NDK"):
        device_runtime.check(ANDROID)


@pytest.mark.usefixtures("tiny_sources")
def test_android_with_an_ndk(cache, ndk, monkeypatch):
    """Its compiler is called with what Android's loader asks for, and with nothing of zig's."""
    said = ndk()
    first = device_runtime.build(ANDROID, "aarch64")
    links = [line.split() for line in said.read_text().splitlines() if " -o runner" in line]
    assert len(links) == 1
    assert {"-static-libstdc++", "-Wl,-z,max-page-size=16384", "-Wl,-z,relro,-z,now", "-Wl,--hash-style=gnu"} <= {
        *links[0]
    }
    assert "-target" not in said.read_text()
    assert [path.name.startswith(ANDROID) for path in cache.iterdir()] == [True]
    ndk(version="Android clang version 19.0.0")
    assert device_runtime.build(ANDROID, "aarch64").runner.path != first.runner.path
    ndk(target="aarch64-unknown-linux-android30")
    assert len({device_runtime.build(ANDROID, "aarch64").runner.path, *cache.iterdir()}) == 4
    ndk()
    no_build(monkeypatch)
    assert device_runtime.build(ANDROID, "aarch64") == first


@pytest.mark.parametrize(
    ("target", "message"),
    [("x86_64-unknown-linux-gnu", "compiles for x86_64-unknown-linux-gnu, not for"), ("", "compiles for , not for")],
)
def test_an_ndk_for_another_machine(ndk, target, message):
    ndk(target=target)
    with pytest.raises(BuildError, match=message) as caught:
        device_runtime.check(ANDROID)
    assert f"{ANDROID}-clang++" in caught.value.hint


def test_an_ndk_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_NDK_CC", str(tmp_path / "clang++"))
    with pytest.raises(BuildError, match=r"clang\+\+ is not installed here"):
        device_runtime.check(ANDROID)


def test_concurrent_builders(cache, sources):
    argv = [sys.executable, "-c", BUILD, str(sources)]
    builders = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {builder.communicate(timeout=120)[0] for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len(digests) == 1
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("sources")
def test_builder_that_loses_the_race(cache, monkeypatch):
    """Another one puts its result in place while this one is building."""
    first = make()
    looks = iter([None, None])
    honest = device_runtime._load
    monkeypatch.setattr(device_runtime, "_load", lambda *words: next(looks, None) or honest(*words))
    assert make() == first
    assert [path.name for path in cache.iterdir()] == [first.runner.path.parent.name]


@pytest.mark.usefixtures("sources")
def test_second_builder_waits(cache, monkeypatch):
    """What the first one made is there once it lets go of the lock."""
    told, holder = [], (cache.parent / f".device-{TRIPLE}.lock")
    cache.parent.mkdir()
    lock = holder.open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def release(line):
        told.append(line)
        lock.close()

    made = make(release)
    assert [line.split()[0] for line in told] == ["waiting", "building"]
    no_build(monkeypatch)
    assert make() == made


@pytest.mark.usefixtures("sources")
def test_cache_that_cannot_be_filled(cache, monkeypatch):
    def refuse(_path, _place):
        raise PermissionError

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(BuildError, match="cannot be moved") as caught:
        make()
    assert "TOOLCHAIN_CACHE" in caught.value.hint
    assert list(cache.iterdir()) == []
