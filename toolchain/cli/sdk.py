"""The command `sdk`: write the libraries with which an application runs releases."""

from __future__ import annotations

from pathlib import Path

import click

from toolchain.cli import common, declare, helptext
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather


@declare.command()
@gather("board", BoardOptions)
@helptext.option(
    "-o", "--output", type=common.PATH, metavar="FOLDER", required=True, help="Folder to write the SDK to."
)
@declare.json_flag
@click.pass_obj
def sdk(console: Console, /, board: BoardOptions, output: Path, *, as_json: bool) -> Result:
    """An application that uses them runs releases by itself. The folder also has examples."""
    from toolchain.native import sdk as sdks

    library = sdks.write(board.board(), output, console.say)
    document = {**vars(library), "folder": str(output)}
    needs = f", glibc {library.glibc} or newer" if library.glibc else ""
    return Result(f"{output}: libedge_model for {library.triple}{needs}; see {output / 'README.md'}", document, as_json)
