"""The command `sdk`: write the libraries with which an application runs releases."""

from __future__ import annotations

from pathlib import Path

import click

from toolchain.cli import common, declare, helptext
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather
from toolchain.errors import InputError


@declare.command()
@gather("board", BoardOptions)
@helptext.option(
    "-o", "--output", type=common.PATH, metavar="FOLDER", required=True, help="Folder to write the SDK to."
)
@helptext.option("--musl", is_flag=True, help="For devices with musl, as Alpine and OpenWrt have, not with glibc.")
@declare.json_flag
@click.pass_obj
def sdk(console: Console, /, board: BoardOptions, output: Path, *, musl: bool, as_json: bool) -> Result:
    """An application that uses them runs releases by itself. The folder also has examples."""
    from toolchain.architecture import is_android
    from toolchain.native import sdk as sdks

    kind = board.board()
    if musl and is_android(kind.triple):
        raise InputError("--musl is not for Android, which has a C library of its own", hint="leave --musl out")
    library = sdks.write(kind, output, console.say, musl=musl)
    document = {**vars(library), "folder": str(output)}
    needs = f", glibc {library.glibc} or newer" if library.glibc else ""
    return Result(f"{output}: libedge_model for {library.triple}{needs}; see {output / 'README.md'}", document, as_json)
