"""Decorators that declare commands; each gets its summary from the list of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from toolchain.cli.commands import ENTRIES
from toolchain.cli.helptext import Decorated, option
from toolchain.cli.reports import JSON_FILE, JSON_OPTION, JSON_SETTINGS, STDOUT, Kind, ReportingCommand

_WHOLE = 10_000  # letters: longer than any sentence


class Group(click.Group):
    """A group of such commands."""

    command_class = ReportingCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command's help in full; click would cut it."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(_WHOLE)) for name, command in commands if command])


def command(reports: Mapping[str, Kind] | None = None) -> Callable[[Callable[..., Any]], ReportingCommand]:
    """Return the decorator that makes a command of the function of its name.

    The help begins with its line in the list of commands, and goes on with the docstring.

    Args:
        reports: The kind of each report, by the option that names its file.
    """
    return lambda function: click.command(_name(function), cls=ReportingCommand, help=_help(function), reports=reports)(
        function
    )


def group() -> Callable[[Callable[..., Any]], Group]:
    """Return the decorator that makes a group of commands of the function of its name, as `command` does."""
    return lambda function: click.command(_name(function), cls=Group, help=_help(function))(function)


def json_flag(function: Decorated) -> Decorated:
    """Add --json to a command: it takes whether its document is printed; a file for it is written afterwards."""

    def take(context: click.Context, _parameter: click.Parameter, value: Path | None) -> bool:
        if value not in {None, Path(STDOUT)}:
            context.meta[JSON_FILE] = value
        return value == Path(STDOUT)

    return option(JSON_OPTION, "as_json", callback=take, **JSON_SETTINGS)(function)


def _name(function: Callable[..., Any]) -> str:
    return function.__name__.replace("_", "-")


def _help(function: Callable[..., Any]) -> str:
    return f"{ENTRIES[_name(function)].line}\n\n{inspect.getdoc(function) or ''}".rstrip()
