"""The progress and the results of commands, and the only place that prints them."""

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
from toolchain.report import Shown, parts

SCREEN = terminal.Screen(lambda: sys.stderr)
"""Progress goes to standard error, so that standard output has the result alone."""


@dataclass(frozen=True)
class Console:
    """How a command reports progress; click passes it to every command as `obj`.

    Attributes:
        say: Takes a line about progress.
        redraw: Takes a table that replaces the last one; a terminal shows it at once, a file gets one now and then.
    """

    say: Callable[[str], None] = SCREEN.say
    redraw: Callable[[Shown], None] = SCREEN.redraw


@dataclass(frozen=True)
class Result:
    """The result of a command: either the text or the document is printed.

    Attributes:
        text: For people.
        document: For programs; may contain dataclasses.
        as_json: Whether the document is printed.
        fault: The error to raise after the result is printed; None if all is well.
    """

    text: Shown
    document: Any = None
    as_json: bool = False
    fault: ToolchainError | None = None


def with_next(result: Result, commands: Sequence[Sequence[str]]) -> Result:
    """Add the next useful commands below the text."""
    first, *others = map(shlex.join, commands)
    lines = [f"next: {first}", *(f"      {command}" for command in others)]
    return dataclasses.replace(result, text=[*parts(result.text), *lines])


def print_result(result: Result) -> None:
    """Print a result, for people or for programs."""
    if result.as_json:
        print_json(result.document)
    elif result.text:
        SCREEN.close()
        terminal.show(result.text, sys.stdout)


def print_json(value: Any) -> None:
    """Print a document for programs."""
    SCREEN.close()  # a bar would be redrawn over the output
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    """Render a document for programs; it may contain dataclasses."""
    return json.dumps(value, indent=2, default=dataclasses.asdict)
