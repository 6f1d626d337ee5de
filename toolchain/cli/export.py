"""The commands `export`, which writes an update file for a device without a network, and `sdk`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, completion, helptext
from toolchain.cli.connection import BoardOptions, DeviceOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, same
from toolchain.errors import InputError
from toolchain.progress import size_text

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.devices import Device


@dataclass(frozen=True)
class ExportOptions:
    """The options of `export`."""

    kind: str = option(
        "--as", type=click.Choice(["offline", "mender", "rauc"]), default="offline", show_default=True,
        help="What to write: a shell script with the update in it, a Mender artifact, or the input of a RAUC bundle.",
    )  # fmt: skip
    output: str = option(
        "-o",
        "--output",
        required=True,
        metavar="UPDATE",
        help="Where to write the update: a file such as update.run, or a folder (FOLDER/).",
    )
    compatible: str | None = option(
        "--compatible", metavar="NAME", help="Device type that Mender or RAUC checks. Default: the board's name."
    )
    host: str | None = option(
        "--host",
        metavar="NAME",
        shell_complete=completion.hosts,
        help="Device in devices.toml; the update then uses its folder and restarts the application of its run table.",
    )
    devices: Path | None = same(DeviceOptions, "devices")
    unchecked: bool = common.unchecked()

    def device(self, board: Board) -> Device | None:
        """Return the device that the update is for; None if it is for any device of the board type.

        Raises:
            InputError: devices.toml has no device of that name, or it is of another type.
        """
        if not self.host:
            return None
        from toolchain import devices
        from toolchain.errors import did_you_mean

        lab = devices.load_devices(self.devices)
        if self.host not in lab:
            hint = did_you_mean(self.host, lab) or "leave --host out for an update that restarts no application"
            raise InputError(f"devices.toml has no device {self.host!r}", hint=hint)
        return devices.find_device(board, self.host, lab)

    def check(self) -> None:
        """Refuse a --compatible that is not valid or has no effect.

        Raises:
            InputError: It is not a valid name, or the update is not for Mender or RAUC.
        """
        if self.compatible is None:
            return
        if self.kind == "offline":
            raise InputError("--compatible is only for Mender and RAUC", hint="leave it out, or add --as mender")
        if not re.fullmatch(r"[\w.+-]+", self.compatible, re.ASCII):
            raise InputError(
                f"--compatible {self.compatible!r} is not a valid name", hint="use letters, digits and . + - _"
            )


@click.command("export", cls=helptext.Command)
@click.argument("source", metavar="PACKAGE", type=common.PATH)
@gather("options", ExportOptions)
@common.json_flag
@click.pass_obj
def export(console: Console, /, source: Path, options: ExportOptions, *, as_json: bool) -> Result:
    """Write an update file for devices without a network.

    PACKAGE is a package or the folder of a bundle.
    """
    from toolchain import board as board_files
    from toolchain import bundle as bundles
    from toolchain import export as exporting
    from toolchain.native import programs

    options.check()
    target, folder = Path(options.output), options.output.endswith("/") or Path(options.output).is_dir()
    exporting.check_target(options.kind, target, folder=folder)
    with bundles.at_hand(source) as bundle:
        board = board_files.load(bundle.manifest.board).resolved()
        bundles.check_board(bundle.manifest, board)
        device = options.device(board)
        if device and device.root:
            board = dataclasses.replace(board, root=device.root)
        program = programs.build(programs.RUNNER, bundle.manifest.triple, bundle.manifest.machine, console.say)
        run_table = device.run if device else None
        with exporting.prepare(bundle, board, program, run_table, unchecked=options.unchecked) as update:
            update_file = exporting.write(
                options.kind, update, target, folder=folder, compatible=options.compatible or ""
            )
        unchecked = bundle.reference is None  # inside the block: afterwards the files of a package are gone
    document = {
        "kind": options.kind,
        "path": str(update_file.path),
        "update": f"sha256:{update_file.sha256}",
        "bytes": update_file.size,
        "release": f"sha256:{bundle.digest}",
        "model": bundle.manifest.name,
        "board": bundle.manifest.board,
        "unchecked": unchecked,
    }
    text = f"{update_file.path}: {size_text(update_file.size)}, update sha256:{update_file.sha256}"
    text += "; UNCHECKED: the package has no reference outputs to compare with" if unchecked else ""
    return Result(text, document, as_json)


@click.command("sdk", cls=helptext.Command)
@gather("board", BoardOptions)
@helptext.option(
    "-o", "--output", type=common.PATH, metavar="FOLDER", required=True, help="Folder to write the SDK to."
)
@common.json_flag
@click.pass_obj
def sdk(console: Console, /, board: BoardOptions, output: Path, *, as_json: bool) -> Result:
    """Write the C and Python libraries for your application.

    An application that uses them runs releases by itself. The folder also has examples.
    """
    from toolchain.native import sdk as sdks

    library = sdks.write(board.board(), output, console.say)
    document = {**vars(library), "folder": str(output)}
    needs = f", glibc {library.glibc} or newer" if library.glibc else ""
    return Result(f"{output}: libedge_model for {library.triple}{needs}; see {output / 'README.md'}", document, as_json)
