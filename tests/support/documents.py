"""The fenced blocks of the documents, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tests.support.paths import ROOT
from toolchain.cli import cli

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:toolchain|make) [^=A-Z`][^`]*)`")
_OPERATORS = {"&&", "||", "|", ";", "&", "(", ")"}
_REDIRECTIONS = {">", ">>", "<", "2>"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: The page's path below the checkout.
        language: What stands behind the opening fence.
        text: The lines between the fences.
    """

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(name_of(page), language, body) for language, body in _FENCED.findall(text)]


def inline_commands(page: Path) -> list[str]:
    """Return the `toolchain ...` and `make ...` of a page's prose."""
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(command.split()) for command in _INLINE.findall(prose)]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell text; redirections and variables before it are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;()<>")
        lexer.whitespace_split = True
        lexer.commenters = "#" if re.search(r"(^|\s)#", line) else ""
        command: list[str] = []
        skip = False
        for token in lexer:
            if token in _OPERATORS:
                yield from filter(None, [command])
                command = []
            elif skip or token in _REDIRECTIONS:
                skip = not skip
            elif command or not _VARIABLE.fullmatch(token):
                command = [*command, token]
        yield from filter(None, [command])


def fault(arguments: list[str]) -> str:
    """Return what is wrong with a command's words; empty for none, and for programs that are not ours."""
    if arguments[0] == "toolchain":
        return _fault_of_toolchain(arguments[1:])
    return _fault_of_make(arguments[1:]) if arguments[0] == "make" else ""


def _fault_of_toolchain(arguments: list[str]) -> str:
    """Look each word up in the command line's own parser."""
    arguments = [argument for argument in arguments if argument not in {"...", "…"}]
    command: click.Command = cli
    context = click.Context(cli, info_name="toolchain")
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, arguments = arguments[0], arguments[1:]
        subcommand = command.get_command(context, name)
        if subcommand is None:
            return f"{context.command_path} has no command {name}"
        command, context = subcommand, click.Context(subcommand, parent=context, info_name=name)
    try:
        _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    except click.UsageError as error:
        # Prose names an option without its value.
        return "" if isinstance(error, click.BadOptionUsage) and "requires" in error.message else error.message
    extra = rest and not isinstance(command, click.Group)
    return f"{context.command_path} does not take {' '.join(rest)}" if extra else ""


def _fault_of_make(arguments: list[str]) -> str:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) +\?=", text, re.MULTILINE))
    for argument in arguments:
        name, is_variable, _ = argument.partition("=")
        if name in {"...", "…", "COMMAND"}:
            continue
        if name not in (variables if is_variable else targets):
            return f"make has no {'variable' if is_variable else 'target'} {name}"
    return ""
