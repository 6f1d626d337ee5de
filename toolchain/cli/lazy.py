"""A group that imports a command only when it is used; the list of commands needs none of them."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from toolchain.cli.commands import RENAMED, Entry
from toolchain.errors import InputError


class LazyGroup(click.Group):
    """A group of commands in modules of this package, each a function of the command's name.

    Args:
        args: As for click's own groups.
        sections: The commands by subject.
        settings: As for click's own groups.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Entry]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._sections = sections
        self._entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return the names of all commands without importing them."""
        return sorted(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import a command; None if there is no such command."""
        if cmd_name not in self._entries:
            return None
        entry = self._entries[cmd_name]
        module, *_ = [importlib.import_module(f"{__package__}.{name}") for name in (entry.module, *entry.others)]
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if there is no such command, suggest the closest names.

        Raises:
            InputError: The command has another name now.
        """
        for count in (2, 1):
            if renamed := RENAMED.get(old := " ".join(args[:count])):
                rest = args[count:]
                hint = shlex.join([*renamed.command(rest), *rest]) if rest else ""
                raise InputError(f"`toolchain {old}` is now `{shlex.join(renamed.command(rest))}`", hint=hint)
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as fault:
            raise click.NoSuchCommand(fault.command_name, possibilities=self._entries, ctx=ctx) from fault

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the commands by subject, each with its full line, without importing them."""
        longest = max(map(len, self._entries))
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(longest), entry.line) for name, entry in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing any."""
        names = [
            CompletionItem(name, help=self._entries[name].line)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
