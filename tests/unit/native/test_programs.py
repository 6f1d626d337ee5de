"""Building the device programs and keeping them; the programs themselves are in integration/test_device_runtime.py."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolchain import files
from toolchain.errors import BuildError
from toolchain.native import programs
from toolchain.native.programs import BOARD_SERVER, RUNNER, Compiler
from toolchain.progress import Step

TRIPLE, MACHINE = "x86_64-linux-gnu", "x86_64"

BUILD = """
import sys
import time
from pathlib import Path
from toolchain.native import programs
from toolchain.native.programs import Compiler
programs._SOURCES = Path(sys.argv[1])
programs._compiler = lambda triple: Compiler((sys.argv[2],), (), (), ())
for name in sys.argv[3:]:
    print(programs.build(name, "x86_64-linux-gnu", "x86_64").sha256)
"""

# Programs of one line, and this machine's compiler: what is tested with them is the way to the cache.
LISTS = """
cmake_minimum_required(VERSION 3.24)
project(tiny CXX)
add_library(shared OBJECT shared.cc)
add_executable(runner main.cc $<TARGET_OBJECTS:shared>)
add_executable(board_server main.cc $<TARGET_OBJECTS:shared>)
set_target_properties(runner PROPERTIES RUNTIME_OUTPUT_DIRECTORY runner)  # a folder of that name, as in the real ones
install(TARGETS runner DESTINATION . COMPONENT runner)
install(TARGETS board_server DESTINATION . COMPONENT board_server)
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
    (folder / "shared.cc").write_text("int shared() { return 0; }\n")
    monkeypatch.setattr(programs, "_SOURCES", folder)
    return folder


@pytest.fixture
def sources(tiny_sources, monkeypatch):
    """The same, for this machine's compiler."""
    compile_with(monkeypatch, "c++")
    return tiny_sources


def compile_with(monkeypatch, *command: str):
    compiler = Compiler(command, (), (), ())
    monkeypatch.setattr(programs, "_compiler", lambda _triple: compiler)


def make(tell=None, name=RUNNER):
    return programs.build(name, TRIPLE, MACHINE, tell)


def finished(cache):
    """Return the folders of built programs, without that of their objects."""
    return [path for path in cache.iterdir() if not path.name.startswith(".")]


def no_build(monkeypatch):
    monkeypatch.setattr(programs, "_build_into", lambda *_: pytest.fail("built again"))


def test_real_programs(program):
    """Each is one file that says what it is made of."""
    assert program.sha256 == files.sha256_file(program.path)
    assert os.access(program.path, os.X_OK)
    assert program.machine == platform.machine()
    assert program.glibc.startswith("2.")
    assert program.versions == {"device": "0.1.0", "tvm": "0.27.0.post1", "tvm_ffi": "0.1.14.post1"}


@pytest.mark.usefixtures("sources")
def test_built_once_and_told_once(cache, monkeypatch):
    messages = []
    first = make(lambda line: isinstance(line, Step) or messages.append(line))
    assert first.path.parent.parent == cache
    assert {path.name for path in first.path.parent.iterdir()} == {"runner", "program.json"}
    assert len(messages) == 1
    assert TRIPLE in messages[0]
    no_build(monkeypatch)
    assert make(messages.append) == first
    assert len(messages) == 1
    assert [path.name for path in finished(cache)] == [first.path.parent.name]


@pytest.mark.usefixtures("cache")
def test_other_sources_are_other_programs(sources):
    first = make()
    (sources / "main.cc").write_text("int main() { return 1; }\n")
    second = make()
    assert second.path != first.path
    assert second.sha256 != first.sha256


@pytest.mark.parametrize("package", ["apache-tvm", "apache-tvm-ffi", "ziglang"])
def test_other_packages_are_other_programs(monkeypatch, package):
    first = programs.origin(TRIPLE).key
    honest = programs.importlib.metadata.version
    monkeypatch.setattr(programs.importlib.metadata, "version", lambda name: "9.9" if name == package else honest(name))
    assert programs.origin(TRIPLE).key != first


@pytest.mark.usefixtures("cache", "sources")
@pytest.mark.parametrize("damage", ["truncated", "missing", "no record", "strange record", "foreign"])
def test_damaged_folder_is_built_again(damage):
    first = make()
    folder = first.path.parent
    if damage == "truncated":
        first.path.write_bytes(first.path.read_bytes()[:1000])
    elif damage == "missing":
        first.path.unlink()
    elif damage == "no record":
        (folder / "program.json").unlink()
    elif damage == "strange record":
        (folder / "program.json").write_text("[]")
    else:
        first.path.write_bytes(Path("/bin/sh").read_bytes())
    again = make()
    assert again.path == first.path
    assert again.sha256 == files.sha256_file(again.path)
    subprocess.run([again.path], check=True, timeout=60)
    assert [path.name for path in finished(folder.parent)] == [folder.name]


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


@pytest.mark.usefixtures("cache")
def test_unsupported_triple():
    with pytest.raises(BuildError, match="device programs cannot be built for s390x-linux-gnu") as caught:
        programs.build(RUNNER, "s390x-linux-gnu", "s390x")
    for triple in ("x86_64-linux-gnu", "aarch64-linux-gnu", "arm-linux-gnueabihf"):
        assert triple in caught.value.details


ANDROID = "aarch64-linux-android24"


@pytest.fixture
def ndk(tmp_path, monkeypatch):
    """Return a function that puts a compiler driver, which makes programs of this machine, in the NDK's place."""
    driver = tmp_path / f"{ANDROID}-clang++"
    log = tmp_path / "said"

    def use(target: str = "aarch64-unknown-linux-android24", version: str = "Android clang version 18.0.1") -> Path:
        lines = ["#!/bin/sh", f'echo "$@" >>{log}', f'case "$*" in --version) echo "{version}"; exit;;']
        lines += [f"-dumpmachine) echo {target}; exit;; esac", 'exec c++ "$@"', ""]
        driver.write_text("\n".join(lines))
        driver.chmod(0o755)
        monkeypatch.setenv("TVM_NDK_CC", str(driver))
        return log

    return use


@pytest.mark.usefixtures("cache")
def test_android_without_an_ndk(monkeypatch):
    monkeypatch.delenv("TVM_NDK_CC", raising=False)
    with pytest.raises(BuildError, match="need Android's NDK") as caught:
        programs.build(RUNNER, ANDROID, "aarch64")
    assert f"set TVM_NDK_CC to {ANDROID}-clang++" in caught.value.hint
    with pytest.raises(BuildError, match="need Android's NDK"):
        programs.check(ANDROID)


@pytest.mark.usefixtures("tiny_sources")
def test_android_with_an_ndk(cache, ndk, monkeypatch):
    """Its compiler is called with what Android's loader asks for, and with nothing of zig's."""
    log = ndk()
    first = programs.build(RUNNER, ANDROID, "aarch64")
    links = [line.split() for line in log.read_text().splitlines() if " -o runner" in line]
    assert len(links) == 1
    assert {"-static-libstdc++", "-Wl,-z,max-page-size=16384", "-Wl,-z,relro,-z,now", "-Wl,--hash-style=gnu"} <= {
        *links[0]
    }
    assert "target" not in log.read_text()
    assert [path.name.startswith(f"runner-{ANDROID}") for path in finished(cache)] == [True]
    ndk(version="Android clang version 19.0.0")
    assert programs.build(RUNNER, ANDROID, "aarch64").path != first.path
    ndk(target="aarch64-unknown-linux-android30")
    assert len({programs.build(RUNNER, ANDROID, "aarch64").path, *finished(cache)}) == 4
    ndk()
    no_build(monkeypatch)
    assert programs.build(RUNNER, ANDROID, "aarch64") == first


@pytest.mark.parametrize(
    ("target", "message"),
    [("x86_64-unknown-linux-gnu", "compiles for x86_64-unknown-linux-gnu, not for"), ("", "compiles for , not for")],
)
def test_an_ndk_for_another_machine(ndk, target, message):
    ndk(target=target)
    with pytest.raises(BuildError, match=message) as caught:
        programs.check(ANDROID)
    assert f"{ANDROID}-clang++" in caught.value.hint


def test_an_ndk_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_NDK_CC", str(tmp_path / "clang++"))
    with pytest.raises(BuildError, match=r"clang\+\+ is not installed here"):
        programs.check(ANDROID)


def test_concurrent_builders(cache, sources):
    argv = [sys.executable, "-c", BUILD, str(sources), "c++", RUNNER, BOARD_SERVER]
    builders = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {builder.communicate(timeout=120)[0] for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len(digests) == 1
    assert len(list(cache.iterdir())) == 2


@pytest.mark.usefixtures("sources")
def test_builder_that_loses_the_race(cache, monkeypatch):
    """Another one puts its result in place while this one is building."""
    first = make()
    looks = iter([None, None])
    honest = programs._load
    monkeypatch.setattr(programs, "_load", lambda *arguments: next(looks, None) or honest(*arguments))
    assert make() == first
    assert finished(cache) == [first.path.parent]


def test_a_build_tells_how_far_it_is(cache, tiny_sources, tmp_path, monkeypatch):
    """Its compiler waits until that was told."""
    driver, go, steps = tmp_path / "driver", tmp_path / "go", []
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
    driver.write_text(f'#!/bin/sh\ncase "$*" in *main.cc*) {wait};; esac\nexec c++ "$@"\n')
    driver.chmod(0o755)
    compile_with(monkeypatch, str(driver))

    def tell(line):
        if isinstance(line, Step):
            steps.append((str(line), line.amount))
            go.touch()

    make(tell)
    assert steps[0][0] == "compiling the runner"
    assert steps[0][1] in {"0 of 2 objects", "1 of 2 objects"}


@pytest.mark.usefixtures("cache")
def test_only_what_is_asked_for_is_compiled(cache, tiny_sources, tmp_path, monkeypatch):
    """A deploy needs the runner; whoever tunes later has the objects that both have in common."""
    driver, go, log = slow_driver(tmp_path)
    go.touch()
    compile_with(monkeypatch, str(driver))
    runner = make()
    assert sorted(log.read_text().split()) == ["runner", "shared"]
    server = make(name=BOARD_SERVER)
    assert sorted(log.read_text().split()) == ["board_server", "runner", "shared"]
    assert set(cache.iterdir()) == {runner.path.parent, server.path.parent}


def in_the_background(tiny_sources, driver):
    """Make what `building` starts compile the programs of one line."""
    settings = f"import sys; sys.argv[1:1] = {[str(tiny_sources), str(driver)]!r}\n"
    return f"{settings}{BUILD}"


def test_a_program_is_built_in_the_background(cache, tiny_sources, tmp_path, monkeypatch):
    """What is done meanwhile goes on until the compiler was at work; then the program is waited for, told of."""
    driver, go, log = slow_driver(tmp_path)
    monkeypatch.setattr(programs, "_BUILD", in_the_background(tiny_sources, driver))
    compile_with(monkeypatch, str(driver))
    messages = []

    def tell(line):
        messages.append(str(line))
        if isinstance(line, Step):
            go.touch()

    with programs.building(BOARD_SERVER, TRIPLE, MACHINE):
        while not log.exists():  # the shared object is compiled, and its program waits
            time.sleep(0.01)
        no_build(monkeypatch)
        program = make(tell, BOARD_SERVER)
    assert "is in use by process" in messages[0]
    assert messages[1] == "compiling the board server"
    assert finished(cache) == [program.path.parent]
    monkeypatch.setattr(programs.process, "spawn_background", lambda *_: pytest.fail("built again"))
    with programs.building(BOARD_SERVER, TRIPLE, MACHINE):
        assert make(name=BOARD_SERVER) == program


def test_a_background_build_ends_with_what_it_is_for(cache, tiny_sources, tmp_path, monkeypatch):
    """Its objects are kept: what comes next compiles none of them again."""
    driver, go, log = slow_driver(tmp_path)
    monkeypatch.setattr(programs, "_BUILD", in_the_background(tiny_sources, driver))
    compile_with(monkeypatch, str(driver))
    with programs.building(BOARD_SERVER, TRIPLE, MACHINE):  # an exception leaves it in the same way
        while not log.exists():
            time.sleep(0.01)
    with (cache.parent / f".device-{TRIPLE}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody builds any more
    go.touch()
    make(name=BOARD_SERVER)
    assert log.read_text().split().count("shared") == 1


@pytest.mark.usefixtures("sources")
def test_a_background_build_that_fails_is_told_by_who_needs_it(sources, monkeypatch):
    (sources / "main.cc").write_text("int main() { return nothing; }\n")
    monkeypatch.setattr(programs, "_BUILD", in_the_background(sources, "c++"))
    with programs.building(RUNNER, TRIPLE, MACHINE), pytest.raises(BuildError, match="cmake failed") as caught:
        make()
    assert "nothing" in caught.value.details


def slow_driver(tmp_path):
    """Make a compiler that tells what it has compiled, and compiles nothing of the board server before it may go on."""
    driver, go, log = tmp_path / "driver", tmp_path / "go", tmp_path / "log"
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
    driver.write_text(
        f'#!/bin/sh\ncase "$*" in *board_server.dir*" -c "*) {wait};; esac\nc++ "$@" || exit 1\n'
        f'for name in shared runner board_server; do case "$*" in *$name.dir*" -c "*) echo $name >>{log};; esac; done\n'
    )
    driver.chmod(0o755)
    return driver, go, log


@pytest.mark.parametrize("by_link", [False, True])
@pytest.mark.parametrize(("number", "compiled"), [(signal.SIGINT, 1), (signal.SIGKILL, 2)])
def test_an_interrupted_build_is_gone_on_with(cache, tiny_sources, tmp_path, monkeypatch, number, compiled, by_link):
    """And a killed one is not: its compiler may be at work."""
    driver, go, log = slow_driver(tmp_path)
    argv = [sys.executable, "-c", BUILD, str(tiny_sources), str(driver), BOARD_SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as builder:
        while not log.exists():
            time.sleep(0.01)
        builder.send_signal(number)
        builder.communicate(timeout=60)
    go.touch()
    compile_with(monkeypatch, str(driver))
    if by_link:
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / "device").symlink_to(cache)
        monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "linked"))
    program = make(name=BOARD_SERVER)
    subprocess.run([program.path], check=True, timeout=60)
    assert log.read_text().split().count("shared") == compiled
    runner = make()
    assert {path.name for path in cache.iterdir()} == {program.path.parent.name, runner.path.parent.name}


@pytest.mark.usefixtures("sources")
def test_second_builder_waits(cache, monkeypatch):
    """What the first one made is there once it lets go of the lock."""
    messages, holder = [], (cache.parent / f".device-{TRIPLE}.lock")
    cache.parent.mkdir()
    lock = holder.open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def release(line):
        messages.append(line)
        lock.close()

    program = make(release)
    assert [line.split()[0] for line in messages if not isinstance(line, Step)] == ["waiting", "building"]
    no_build(monkeypatch)
    assert make() == program


@pytest.mark.usefixtures("sources")
def test_cache_that_cannot_be_filled(cache, monkeypatch):
    def refuse(_path, _place):
        raise PermissionError

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(BuildError, match="cannot be moved") as caught:
        make()
    assert "TOOLCHAIN_CACHE" in caught.value.hint
    assert list(cache.iterdir()) == []
