"""A group whose commands are imported when they are used: their names and one line about each are known without."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from toolchain.cli.commands import Entry


class LazyGroup(click.Group):
    """A group of commands that lie in modules beside this one, each under its own name.

    Args:
        args: What click's own groups take.
        sections: The commands by subject.
        settings: As `args`.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Entry]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._sections = sections
        self._entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Name the commands, the hidden ones as well; none is imported."""
        return sorted(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import a command; None if there is none of this name."""
        if cmd_name not in self._entries:
            return None
        module = importlib.import_module(f"{__package__}.{self._entries[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; where there is none of this name, suggest the closest ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as fault:
            raise click.NoSuchCommand(fault.command_name, possibilities=self._entries, ctx=ctx) from fault

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the lines about the commands by subject, without cutting any; none is imported."""
        longest = max(map(len, self._entries))
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(longest), entry.line) for name, entry in section.items() if not entry.hidden]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command; none is imported."""
        names = [
            CompletionItem(name, help=self._entries[name].line)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete) and not self._entries[name].hidden
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
