"""The command line as a whole: its help, and its ends."""

from __future__ import annotations

import subprocess
import sys

import click

from tests.support.commands import done
from toolchain.cli import cli


def command_lines(command: click.Command, *command_path: str) -> list[tuple[str, ...]]:
    """Name a command and all below it."""
    paths = [command_path]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below
            paths += command_lines(below, *command_path, name)
    return paths


def test_every_command_explains_itself():
    command_paths = command_lines(cli)
    assert {("deploy",), ("board", "check"), ("farm", "lock"), ("vta", "self-test")} <= set(command_paths)
    for command_path in command_paths:
        usage = done(*command_path, "--help").out.splitlines()[0]
        assert " ".join(["toolchain", *command_path, "["]) in usage, usage


DESTRUCTOR = """
import os, signal, sys, time, toolchain.board
from toolchain.cli import main

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def names():
    Held()
    time.sleep(60)

toolchain.board.names = names
sys.argv[1:] = ["board", "list"]
main()
"""


def test_an_interrupt_in_a_destructor_is_not_lost():
    completed = subprocess.run(
        [sys.executable, "-c", DESTRUCTOR], capture_output=True, text=True, timeout=50, check=False
    )
    assert (completed.returncode, completed.stderr.split()) == (130, ["interrupted"])
