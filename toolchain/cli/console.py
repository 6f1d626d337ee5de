"""What commands say and what they hand back; here alone it is printed."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from toolchain.cli import terminal
from toolchain.errors import ToolchainError
from toolchain.tables import Shown, parts

SCREEN = terminal.Screen(lambda: sys.stderr)
"""Progress goes to standard error, so that results can be piped."""


@dataclass(frozen=True)
class Console:
    """How a command tells about its progress; every command finds it in its click context, as `obj`.

    Attributes:
        say: Takes a line about progress.
        redraw: Takes a table that stands in place of the one before; a terminal shows it at once, anything else gets
            one now and then.
    """

    say: Callable[[str], None] = SCREEN.say
    redraw: Callable[[Shown], None] = SCREEN.redraw


@dataclass(frozen=True)
class Result:
    """What a command found out: one of the two is printed.

    Attributes:
        text: For people.
        document: For programs; dataclasses are fine.
        as_json: Whether a program asked.
        fault: What is raised once the result was printed; None if all is well.
    """

    text: Shown
    document: Any = None
    as_json: bool = False
    fault: ToolchainError | None = None


def with_next(result: Result, commands: Sequence[Sequence[str]]) -> Result:
    """Add, below what is printed, the commands that people want next."""
    first, *others = map(shlex.join, commands)
    lines = [f"next: {first}", *(f"      {command}" for command in others)]
    return dataclasses.replace(result, text=[*parts(result.text), *lines])


def print_result(result: Result) -> None:
    """Print what a command found out, for whoever asked."""
    if result.as_json:
        print_json(result.document)
    elif result.text:
        SCREEN.close()
        terminal.show(result.text, sys.stdout)


def print_json(value: Any) -> None:
    """Print a document for programs."""
    SCREEN.close()
    click.echo(json.dumps(value, indent=2, default=dataclasses.asdict))
