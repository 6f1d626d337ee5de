"""A group whose commands are imported when they are used: their names and one line about each are known without."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group of commands that lie in modules beside this one, each under its own name.

    Args:
        words: What click's own groups take.
        modules: By module, the line in the help of each of its commands.
        options: As `words`.
    """

    def __init__(self, *words: Any, modules: Mapping[str, Mapping[str, str]], **options: Any) -> None:
        super().__init__(*words, **options)
        self._modules = {name: module for module, lines in modules.items() for name in lines}
        self._lines = click.Group(
            commands=[click.Command(name, help=line) for lines in modules.values() for name, line in lines.items()]
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands; none is imported."""
        return self._lines.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import a command; None if there is none of this name."""
        if cmd_name not in self._modules:
            return None
        module = importlib.import_module(f"{__package__}.{self._modules[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines about the commands; none is imported."""
        self._lines.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command; none is imported."""
        names = [
            CompletionItem(name, help=self._lines.commands[name].get_short_help_str())
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
