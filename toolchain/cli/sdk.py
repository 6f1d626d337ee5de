"""What an application is built with that runs releases by itself."""

from __future__ import annotations

from pathlib import Path

import click

from toolchain.cli import helptext, options
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gathered


@click.command("sdk", cls=helptext.Command)
@gathered("kind", BoardOptions)
@helptext.option("-o", "--output", type=options.PATH, required=True, help="Folder for the SDK.")
@options.json_flag
@click.pass_obj
def sdk(console: Console, /, kind: BoardOptions, output: Path, *, as_json: bool) -> Result:
    """Write what an application needs to run releases: a C library for the board, examples, Python."""
    from toolchain.native import sdk as sdks

    made = sdks.write(kind.board(), output, console.say)
    document = {**vars(made), "folder": str(output)}
    needs = f", glibc {made.glibc} or newer" if made.glibc else ""
    return Result(f"{output}: libedge_model for {made.triple}{needs}; see {output / 'README.md'}", document, as_json)
