"""Every hint names commands, options and variables that exist, and what brings a thing that is missing."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
import tomllib
from pathlib import Path

import click
import pytest

from tests.support.paths import ROOT
from toolchain import board, process
from toolchain.checks import Outcome
from toolchain.cli import cli
from toolchain.containers import run as engine_run
from toolchain.errors import EngineError, InputError, ToolchainError
from toolchain.native.cross import ContainerCross, HostCross
from toolchain.pipeline import doctor
from toolchain.places import labgrid
from toolchain.shell.adb import client as adb_faults
from toolchain.tuning.build.cluster.scheduler import Access, parse
from toolchain.virtual import container, machine

HOLE = "\N{WHITE SQUARE}"  # stands for what an f-string puts in


def text_of(node: ast.AST) -> str:
    """Return the constant parts of an expression of strings, with a mark for the others."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.BoolOp):
        return "; ".join(text_of(value) for value in node.values)
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)}; {text_of(node.orelse)}"
    return HOLE


@functools.cache
def hints() -> list[tuple[str, str]]:
    """Return all hints of the source, with where they are: arguments and local names that are called so."""
    located = []
    for path in sorted((ROOT / "toolchain").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "hint" in source else ():
            value = None
            if (isinstance(node, ast.keyword) and node.arg == "hint") or (
                isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "hint" for target in node.targets)
            ):
                value = node.value
            if value is not None and (text := text_of(value)).strip(HOLE):
                located.append((f"{path.relative_to(ROOT)}:{value.lineno}", text))
    return located


def commands(text: str) -> list[list[str]]:
    """Return the words of each command of ours that a text names, in backquotes or bare."""
    quoted = re.findall(r"`([^`]*)`", text)
    bare = [command.strip().removeprefix("run ") for command in re.split(r"`[^`]*`|[;,\n]|, or | or | then |: ", text)]
    return [command.split()[1:] for command in quoted + bare if re.match(r"toolchain [a-z]", command)]


def resolved(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """Follow the words of a command line down to the command that they call; return it and the rest."""
    command: click.Command = cli
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        inner = command.get_command(click.Context(command), arguments[0].strip(".,:()"))
        if inner is None:
            return cli, arguments
        command, arguments = inner, arguments[1:]
    return command, arguments


def options_of(command: click.Command) -> set[str]:
    names = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return names | {"--help", "-h", "--debug", "--version"}


def every_option(command: click.Command) -> set[str]:
    options = options_of(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            options |= every_option(inner) if inner else set()
    return options


def test_there_are_hints_to_look_at():
    assert len(hints()) > 300
    assert sum(bool(commands(text)) for _, text in hints()) > 50


def wrong_commands(text: str) -> list[str]:
    """Return what is wrong with the commands that a hint names."""
    faults = []
    for arguments in commands(text):
        command, rest = resolved(arguments)
        if command is cli:
            faults.append(f"there is no command `toolchain {' '.join(arguments)}`")
        names = {argument.partition("=")[0].strip(".,:;()") for argument in rest}
        options = {name for name in names if re.fullmatch(r"--[a-z][a-z0-9-]+", name)}
        faults += [f"`toolchain {arguments[0]}` has no option {name}" for name in options - options_of(command)]
    return faults


def test_the_commands_of_hints_exist_and_take_their_options():
    assert [(location, fault) for location, text in hints() for fault in wrong_commands(text)] == []


@pytest.mark.parametrize("text", ["run `toolchain depoly`", "toolchain farm up --vertual a", "`toolchain farm ups`"])
def test_a_wrong_command_would_be_seen(text):
    assert wrong_commands(text)


OTHER_PROGRAMS = re.compile(
    r"(adb|ansible-inventory|apt-get|chmod|docker|mount|labgrid-client|ssh|ssh-keygen|python|sudo|zig)\b[^;`]*"
)


def test_the_options_that_hints_name_are_some_commands():
    options, faults = every_option(cli), []
    for location, text in hints():
        names = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", OTHER_PROGRAMS.sub("", text))
        faults += [(location, name) for name in names if name not in options]
    assert faults == []


def test_no_hint_sends_anybody_to_doctor_for_the_name_of_a_package():
    assert [(location, text) for location, text in hints() if "doctor` names the package" in text] == []


def test_the_variables_of_make_that_hints_name_exist():
    ours = re.search(r"^OURS +:= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert ours
    names = {name for _, text in hints() for name in re.findall(r"\b([A-Z]+)= with make", text)}
    assert names <= set(ours[1].split())


# --- what is missing, and what brings it ------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without programs and without Docker."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")


def raised(call) -> ToolchainError:
    with pytest.raises(ToolchainError) as caught:
        call()
    return caught.value


def use_engine():
    with engine_run.engine() as client:
        client.ping()


def use_labgrid():
    with labgrid.acquire("rack"):
        pass


MISSING = {
    "cross compiler, 64 bits": (
        HostCross("aarch64-linux-gnu", "aarch64-linux-gnu-g++").describe,
        "apt-get install g++-aarch64-linux-gnu",
    ),
    "cross compiler, 32 bits": (
        HostCross("arm-linux-gnueabihf", "arm-linux-gnueabihf-g++").describe,
        "apt-get install g++-arm-linux-gnueabihf",
    ),
    "compiler": (HostCross("x86_64-linux-gnu", "c++").describe, "apt-get install g++"),
    "Docker": (use_engine, "apt-get install docker.io and start it"),
    "Docker, for a board": (ContainerCross("aarch64-linux-gnu", "mali").describe, "apt-get install docker.io"),
    "Docker, for a virtual board": (container.connect, "apt-get install docker.io"),
    "emulator": (
        lambda: machine.KernelBoards(Path("nowhere")).prepare(board.load("rpi4"), print),
        "apt-get install qemu-system-arm",
    ),
}


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", MISSING)
def test_a_thing_that_is_missing_comes_with_what_brings_it(name):
    call, remedy = MISSING[name]
    assert remedy in raised(call).hint


@pytest.mark.usefixtures("bare")
def test_whoever_lacks_docker_is_told_of_the_compiler_that_does_without():
    fault = raised(ContainerCross("aarch64-linux-gnu", "mali").describe)
    assert isinstance(fault, EngineError)
    assert fault.hint.endswith("; or use --toolchain host")  # zig links where no compiler is installed
    other = raised(ContainerCross("aarch64-linux-gnu", "mali", "aarch64-linux-gnu-g++").describe)
    assert "apt-get install g++-aarch64-linux-gnu and use --toolchain host" in other.hint
    assert "--toolchain" not in raised(use_engine).hint  # `toolchain containers` takes no such option


def test_the_other_things_that_are_missing():
    assert "apt-get install adb" in adb_faults.not_installed("adb").hint
    remedies = tomllib.loads((ROOT / "toolchain" / "backends" / "accelerators.toml").read_text())["opencl"]["remedies"]
    assert "apt-get install" in remedies["emulated"]


@pytest.mark.parametrize(
    ("module", "call", "package"),
    [
        ("distributed", lambda: parse("dask://127.0.0.1:1", Access()).client().__enter__(), "distributed"),
        ("labgrid.remote", use_labgrid, "labgrid"),
    ],
)
def test_a_python_package_that_is_missing(module, call, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    fault = raised(call)
    assert isinstance(fault, InputError)
    assert re.fullmatch(rf"pip install '{package}>=[\d.]+'", fault.hint)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", board.names())
def test_doctor_says_what_brings_each_thing_that_is_missing(name):
    for check in doctor.examine([board.load(name)]):
        assert check.passed or check.remedy, check
        if not check.passed and check.name.endswith("g++"):
            assert "apt-get install g++" in check.remedy


def test_doctor_counts_a_compiler_of_this_machine_where_the_image_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    rpi4 = board.load("rpi4")

    def linker() -> Outcome:
        return next(check for check in doctor.examine([rpi4]) if "aarch64-linux-gnu-g++" in check.name)

    assert linker().found.endswith("/ziglang/zig, with --toolchain host")
    (tmp_path / "aarch64-linux-gnu-g++").touch(0o755)
    assert linker().found == f"{tmp_path / 'aarch64-linux-gnu-g++'}, with --toolchain host"
    with contextlib.suppress(ToolchainError):  # it is an empty program, but not one that is missing
        process.run(["aarch64-linux-gnu-g++"])
