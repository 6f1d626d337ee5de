from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.support import documents
from tests.support.commands import toolchain
from toolchain.cli import cli, lazy
from toolchain.cli.commands import ENTRIES, RENAMED

NAMES = cli.list_commands(click.Context(cli))
MODULES = {path.stem for path in Path(lazy.__file__).parent.glob("*.py")}
ALWAYS = {"commands", "console", "helptext", "lazy", "reports", "terminal"}
LOADED = """
import json, sys, toolchain.cli
sys.argv[0] = "toolchain"
try: toolchain.cli.main()
except SystemExit: print("\\n", json.dumps([name for name in sys.modules if name.startswith(("toolchain.", "tvm"))]))
"""


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules of the command line that are imported for some arguments, and what takes seconds."""
    completed = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    modules = set(json.loads(completed.stdout.splitlines()[-1]))
    ours = {name for name in MODULES if f"toolchain.cli.{name}" in modules}
    return (ours - ALWAYS) | (modules & {"tvm", "toolchain.backends"})


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_begins_with_its_line(name):
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command
    assert command.name == name
    assert command.get_short_help_str(1000) == ENTRIES[name].line


def test_the_line_of_a_command_stands_in_one_place():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(lazy.__file__).parent.glob("*.py")}
    for entry in ENTRIES.values():
        assert [name for name, text in texts.items() if entry.line in text] == ["commands"], entry.line


def test_the_help_imports_no_command():
    assert loaded_by("--help") == set()
    out = toolchain("--help").out
    assert {name for name in NAMES if f"\n  {name} " in out} == set(NAMES)


def test_completing_a_command_imports_none(monkeypatch):
    for name, value in {"_TOOLCHAIN_COMPLETE": "bash_complete", "COMP_WORDS": "toolchain ", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    assert loaded_by() == set()
    items = cli.shell_complete(click.Context(cli), "rec")
    assert [(item.value, item.help[:10]) for item in items] == [("records", "Show, merg")]
    assert "--debug" in {item.value for item in cli.shell_complete(click.Context(cli), "--")}


def test_a_command_imports_what_it_is_made_of():
    assert loaded_by("model", "list") >= {"declare", "models"}
    assert loaded_by("inspect", "--help") >= {"inspection", "mali"}
    assert loaded_by("vta", "--help") >= {"vta", "toolchain.backends"}


@pytest.mark.parametrize("group", ["", "board", "vta"])
def test_an_unknown_command(group):
    result = toolchain(*group.split(), "nothing")
    assert (result.code, result.out) == (2, "")
    path = " ".join(["toolchain", *group.split()])
    assert result.err == f"error: no such command 'nothing' (exit code 2)\nhint: `{path} --help` lists the commands\n"


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("depoly mlp", "deploy"),
        ("farm stauts", "status"),
        ("board ad pi@10.0.0.7", "add"),
        ("records exprot", "export"),
    ],
)
def test_an_unknown_command_that_is_close_to_another_one(arguments, suggestion):
    result = toolchain(*arguments.split())
    assert result.code == 2
    assert result.err.splitlines()[1] == f"hint: did you mean {suggestion}?"


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_refused_with_the_new_command(old):
    result = toolchain(*old.split(), "x", "--anything", "a b")
    new = " ".join(RENAMED[old].command(()))
    assert (result.code, result.out) == (2, "")
    assert result.err == (f"error: `toolchain {old}` is now `{new}` (exit code 2)\nhint: {new} x --anything 'a b'\n")


@pytest.mark.parametrize("old", RENAMED)
def test_the_new_command_of_an_old_name_exists_with_its_option(old):
    assert documents.fault(RENAMED[old].command(())) == ""
    assert documents.fault(["toolchain", *old.split()])


def test_an_old_name_alone_needs_no_hint():
    assert toolchain("boards").err == "error: `toolchain boards` is now `toolchain board list` (exit code 2)\n"


def test_an_option_of_the_user_is_not_repeated():
    result = toolchain("export", "a.tar", "--as", "mender", "-o", "a")
    assert result.err.splitlines()[1] == "hint: toolchain package a.tar --as mender -o a"


def test_an_old_name_is_told_to_programs():
    result = toolchain("releases", "--json")
    assert json.loads(result.out)["error"]["hint"] == "toolchain status --releases --json"
