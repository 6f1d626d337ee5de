"""Board types: which there are, what is wrong with a board file, and what this machine lacks for one."""

from __future__ import annotations

from pathlib import Path

import click

from toolchain.cli import completion, options
from toolchain.cli.console import Result
from toolchain.errors import BuildError, InputError
from toolchain.tables import Table


@click.group("boards", invoke_without_command=True)
@options.json_flag
@click.pass_context
def boards(context: click.Context, *, as_json: bool) -> Result | None:
    """List the board types; check a board file."""
    if context.invoked_subcommand:
        return None
    from toolchain import board

    found = [board.load(name) for name in board.names()]
    rows = [(item.name, item.backend, item.machine, item.connection, item.description) for item in found]
    return Result(Table(rows, ("BOARD", "BACKEND", "MACHINE", "REACHED BY", "DEVICES"), spare=[3, 2]), found, as_json)


@boards.command("check")
@click.argument("file", type=options.PATH)
@options.json_flag
def boards_check(file: Path, *, as_json: bool) -> Result:
    """Explain every fault of a board FILE."""
    from toolchain import board

    found, faults = board.check(file)
    if found:
        from toolchain import backends  # TVM takes two seconds, which a fault in the text needs not

        faults = backends.faults(found.resolved())
    if not faults:
        return Result(f"{file}: a valid board file", [], as_json)
    fault = InputError(f"{file} has {len(faults)} fault(s)", details="\n".join(map(str, faults)))
    return Result("", faults, as_json, fault=fault)


@boards.command("schema")
def boards_schema() -> Result:
    """Print the JSON Schema of board files, for editors."""
    from toolchain import board

    return Result("", board.schema(), as_json=True)


@click.command("doctor")
@click.option(
    "--board",
    "board_name",
    shell_complete=completion.boards,
    help="Only this board; exit 3 if something is missing for it.",
)
@options.json_flag
def doctor(board_name: str | None, *, as_json: bool) -> Result:
    """Say what this machine has and lacks for each board."""
    from toolchain import board
    from toolchain.pipeline import doctor as doctors

    checks = doctors.examine([board.load(name) for name in ([board_name] if board_name else board.names())])
    missing = [item for item in checks if not item.ok]
    fault = None
    if board_name and missing:
        fault = BuildError(f"board {board_name} lacks {len(missing)} thing(s)", hint=missing[0].remedy)
    return Result(doctors.shown(checks), checks, as_json, fault)
