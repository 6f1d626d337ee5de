"""Shell completion of board types, devices and models. It must answer at once, so it never imports TVM."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from toolchain.cli import declare
from toolchain.cli.console import Result
from toolchain.errors import InputError, ToolchainError


def boards(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a board type, or the path of a board file."""
    from toolchain import board

    return _matching(board.names(), incomplete)


def hosts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a name of devices.toml; with --board, only the devices of that type if there are some."""
    from toolchain import devices

    try:
        lab = devices.load_devices(context.params.get("devices"))
    except ToolchainError:  # the command itself reports a wrong file
        return []
    board_name = context.params.get("board_name")
    matching = [name for name, device in lab.items() if device.board == board_name]
    return _matching(matching or list(lab), incomplete)


def models(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a predefined network, or the path of a model, a package or a bundle."""
    from toolchain.models import zoo

    # `zoo:NAME` always means the network, even if there is a file NAME
    prefix = zoo.PREFIX if incomplete.startswith(zoo.PREFIX) else ""
    return _matching([prefix + name for name in zoo.NAMES], incomplete)


def _matching(names: list[str] | tuple[str, ...], incomplete: str) -> list[CompletionItem]:
    """Return the names that begin like this; if there are none, let the shell complete files."""
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


_USE = {
    "bash": 'eval "$(toolchain completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(toolchain completion zsh)" in ~/.zshrc, after compinit',
    "fish": "toolchain completion fish > ~/.config/fish/completions/toolchain.fish",
}


@declare.command()
@click.argument("shell", type=click.Choice(list(_USE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> Result:
    """The shell then completes commands, boards, hosts and models. The first line of the script says how to use it."""
    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise InputError(f"click does not know the shell {shell}")
    source = shell_class(context.find_root().command, {}, "toolchain", "_TOOLCHAIN_COMPLETE").source()
    return Result(f"# {_USE[shell]}\n{source}")
