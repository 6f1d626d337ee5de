"""The command line as a whole: its help, and its ends."""

from __future__ import annotations

import subprocess
import sys

import click

from tests.support.commands import done
from toolchain.cli import cli


def command_lines(command: click.Command, *words: str) -> list[tuple[str, ...]]:
    """Name a command and all below it."""
    found = [words]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below
            found += command_lines(below, *words, name)
    return found


def test_every_command_explains_itself():
    found = command_lines(cli)
    assert {("deploy",), ("board", "check"), ("farm", "lock"), ("vta", "self-test")} <= set(found)
    for words in found:
        usage = done(*words, "--help").out.splitlines()[0]
        assert " ".join(["toolchain", *words, "["]) in usage, usage


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
    completed = subprocess.run([sys.executable, "-c", DESTRUCTOR], capture_output=True, text=True, timeout=50, check=False)
    assert (completed.returncode, completed.stderr.split()) == (130, ["interrupted"])
