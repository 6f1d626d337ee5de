"""The command groups of the backends, as backends/commands.toml lists them; each is imported when it is used."""

from __future__ import annotations

import importlib
import tomllib
from functools import cached_property
from pathlib import Path

import click

_FILE = Path(__file__).parent / "backends" / "commands.toml"


class _Late(click.Group):
    """A group that is somewhere else.

    Args:
        name: Its name.
        where: `module:name` of the group.
        summary: Its line in the help of the group above.
    """

    def __init__(self, name: str, where: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._where = where

    @cached_property
    def _group(self) -> click.Group:
        module, _, name = self._where.partition(":")
        group: click.Group = getattr(importlib.import_module(module), name)
        return group

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._group.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._group.get_command(ctx, cmd_name)


def groups() -> list[click.Group]:
    """Return the groups in the order of the file; none of their modules is imported yet."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return [_Late(name, one["group"], one["help"]) for name, one in table.items()]
