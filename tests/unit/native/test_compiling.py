"""The folder that device programs are compiled in, and what is told of it; how they are kept is in test_programs.py."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from toolchain.errors import BuildError
from toolchain.native import programs
from toolchain.native.programs import Compiler, Workspace
from toolchain.progress import Step

LISTS = """
cmake_minimum_required(VERSION 3.24)
project(tiny CXX)
message(STATUS "${WORD}")
add_library(shared OBJECT shared.cc)
foreach(name runner board_server)
  add_executable(${name} ${name}.cc $<TARGET_OBJECTS:shared>)
  install(TARGETS ${name} DESTINATION . COMPONENT ${name})
endforeach()
"""
COMPILER = Compiler(("c++",), ("-DFLAG",), (), ())


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    return Workspace(tmp_path / "device", "x86_64-linux-gnu", "0123")


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(LISTS)
    (folder / "shared.cc").write_text("#ifndef FLAG\n#error no flags\n#endif\nint shared() { return 0; }\n")
    for name in ("runner", "board_server"):
        (folder / f"{name}.cc").write_text("int main() { return 0; }\n")
    return folder


def compiled(work: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in (work / "build").rglob("*.cc.o")}


def test_a_program_and_what_it_needs(workspace, sources):
    with programs.build_folder(workspace) as first:
        programs.run_cmake(COMPILER, sources, "runner", first, {"WORD": "runner"})
        assert [path.name for path in (first / "staged").iterdir()] == ["runner"]
        assert compiled(first) == {"shared", "runner"}
        before = next(first.rglob("shared.cc.o")).stat().st_mtime_ns
    with programs.build_folder(workspace) as second:
        programs.run_cmake(COMPILER, sources, "board_server", second, {"WORD": "again"})
        assert compiled(second) == {"shared", "runner", "board_server"}
        assert next(second.rglob("shared.cc.o")).stat().st_mtime_ns == before
    assert second == first


def test_a_linked_file_that_may_be_half_written_is_linked_again(workspace, sources):
    with programs.build_folder(workspace) as work:
        programs.run_cmake(COMPILER, sources, "runner", work, {})
        complete = (work / "build" / "runner").read_bytes()
        (work / "build" / "runner").write_bytes(complete[:100])
        programs.run_cmake(COMPILER, sources, "runner", work, {})
        assert (work / "staged" / "runner").stat().st_size >= len(complete) // 2


def test_sources_that_do_not_compile_leave_nothing(workspace, sources):
    (sources / "shared.cc").write_text("int shared() { return nothing; }\n")
    with pytest.raises(BuildError, match="cmake failed") as caught, programs.build_folder(workspace) as work:
        programs.run_cmake(COMPILER, sources, "runner", work, {})
    assert "nothing" in caught.value.details
    assert list(workspace.root.iterdir()) == []


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_was_configured_is_gone_on_with(workspace, interrupted):
    def work_once():
        with programs.build_folder(workspace) as work:
            (work / "configured").touch()
            if interrupted:
                raise KeyboardInterrupt
        return work

    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            work_once()
    else:
        work_once()
    [folder] = workspace.root.iterdir()
    with programs.build_folder(workspace) as again:
        assert (again, [path.name for path in again.iterdir()]) == (folder, ["configured"])


def test_what_was_killed_is_not_gone_on_with(workspace):
    """Its compiler may be at work; the same goes for what was not configured to its end."""
    killed = workspace.make()
    (killed / "configured").touch()
    with programs.build_folder(workspace) as work:
        assert work != killed
        assert list(workspace.root.iterdir()) == [work]


def test_what_other_sources_left_goes_and_what_other_triples_left_stays(workspace):
    older = Workspace(workspace.root, workspace.triple, "4567").make()
    other = Workspace(workspace.root, "aarch64-linux-gnu", "0123").make()
    with programs.build_folder(workspace) as work:
        assert set(workspace.root.iterdir()) == {work, other}
    assert not older.exists()


def test_the_steps_of_a_build_are_told_whoever_builds(workspace):
    """What a waiting process sees of another one's work: nothing, then an object more each time."""
    steps, heard = [], threading.Event()

    def tell(step):
        steps.append(step)
        heard.set()

    with programs.report_progress(workspace, "board_server", tell):
        objects = workspace.make() / "build" / "server" / "CMakeFiles" / "board_server.dir"
        objects.mkdir(parents=True)
        (objects / "main.cc.o").touch()
        command = 'c++ CMakeFiles/board_server.dir/main.cc.o "../CMakeFiles/shared.dir/shared.cc.o" -o board_server'
        (objects / "new").write_text(command)
        (objects / "new").rename(objects / "link.txt")
        assert heard.wait(30)
        assert isinstance(steps[0], Step)
        assert (str(steps[0]), steps[0].amount) == ("compiling the board server", "1 of 2 objects")
        shared = objects.parents[2] / "CMakeFiles" / "shared.dir"
        shared.mkdir(parents=True)
        (shared / "shared.cc.o").touch()
        heard.clear()
        while steps[-1].done < 2:
            assert heard.wait(30)
            heard.clear()


def test_nobody_to_tell(workspace):
    with programs.report_progress(workspace, "runner", None):
        assert not workspace.root.exists()
