"""The command `package`: pack a bundle as one archive, or as an update file for a device without a network."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, completion, declare
from toolchain.cli.connection import DeviceOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, same
from toolchain.errors import InputError
from toolchain.progress import size_text

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.devices import Device

_ARCHIVE, _OFFLINE = "oci", "offline"
_BY_SUFFIX = {".run": _OFFLINE, ".mender": "mender"}


@dataclass(frozen=True)
class PackageOptions:
    """The options of `package`."""

    kind: str | None = option(
        "--as", type=click.Choice([_ARCHIVE, _OFFLINE, "mender", "rauc"]),
        help="What to write: a package (an OCI archive); for devices without a network a shell script with the update"
        " in it; a Mender artifact; or the input of a RAUC bundle. Default: offline for NAME.run, mender for"
        " NAME.mender, otherwise oci.",
    )  # fmt: skip
    output: str = option(
        "-o",
        "--output",
        required=True,
        metavar="OUTPUT",
        help="Where to write it: a file such as model.oci.tar or update.run. An update may also be a folder (FOLDER/).",
    )
    unpack: bool = option(
        "--unpack",
        is_flag=True,
        help="Unpack a package instead: BUNDLE is the package, and OUTPUT the folder for its bundle.",
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
    slot: str = option(
        "--slot", metavar="NAME", default="", help="Slot of the store for the update. Default: the release without one."
    )
    musl: bool = option(
        "--musl",
        is_flag=True,
        help="Write an update for devices with musl, as Alpine and OpenWrt have, not with glibc.",
    )
    unchecked: bool = common.unchecked()

    @property
    def target(self) -> Path:
        return Path(self.output)

    @property
    def form(self) -> str:
        """What to write, if nothing is unpacked."""
        return self.kind or _BY_SUFFIX.get(self.target.suffix, _ARCHIVE)

    def check(self) -> None:
        """Refuse a --compatible that is not valid, and options that have no effect.

        Raises:
            InputError: There is such an option.
        """
        from toolchain.devices import check_slot

        if self.unpack and self.kind:
            raise InputError("--unpack and --as cannot be combined", hint="leave one of them out")
        if self.compatible is not None and self.form in {_ARCHIVE, _OFFLINE}:
            raise InputError("--compatible is only for Mender and RAUC", hint="leave it out, or add --as mender")
        if self.compatible is not None and not re.fullmatch(r"[\w.+-]+", self.compatible, re.ASCII):
            raise InputError(
                f"--compatible {self.compatible!r} is not a valid name", hint="use letters, digits and . + - _"
            )
        updating = {
            "--host": self.host,
            "--devices": self.devices,
            "--slot": self.slot,
            "--musl": self.musl,
            "--unchecked": self.unchecked,
        }
        if (self.unpack or self.form == _ARCHIVE) and (unused := [name for name, value in updating.items() if value]):
            raise InputError(f"{unused[0]} is only for updates", hint="leave it out, or add --as offline")
        if self.slot:
            check_slot(self.slot)

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


@declare.command()
@click.argument("source", metavar="BUNDLE", type=common.PATH)
@gather("options", PackageOptions)
@declare.json_flag
@click.pass_obj
def package(console: Console, /, source: Path, options: PackageOptions, *, as_json: bool) -> Result:
    """BUNDLE is the folder of a bundle; for an update it may also be a package. A package has the OCI image layout."""
    options.check()
    if options.unpack:
        return _unpack(source, options.target, as_json)
    if options.form == _ARCHIVE:
        return _pack(source, options.target, as_json)
    return _write_update(console, source, options, as_json=as_json)


def _pack(source: Path, output: Path, as_json: bool) -> Result:  # noqa: FBT001 - as the command has it
    from toolchain import bundle as bundles

    bundles.check_package_target(output)
    bundle = bundles.load(source)
    bundles.pack(bundle, output)
    size = output.stat().st_size
    document = {"package": str(output), "digest": f"sha256:{bundle.digest}", "bytes": size}
    return Result(f"{output}: {size_text(size)}, sha256:{bundle.digest}", document, as_json)


def _unpack(source: Path, output: Path, as_json: bool) -> Result:  # noqa: FBT001 - as the command has it
    from toolchain import bundle

    if source.is_dir():  # a bundle: --unpack was added by mistake
        raise InputError(f"{source} is a folder, not a package", hint="leave --unpack out to pack the bundle in it")
    bundle.check_target(output)
    unpacked = bundle.unpack(source, output)
    document = {"bundle": str(output), "digest": f"sha256:{unpacked.digest}"}
    text = f"{output}: {unpacked.manifest.name} for {unpacked.manifest.board}, sha256:{unpacked.digest}"
    return Result(text, document, as_json)


def _write_update(console: Console, source: Path, options: PackageOptions, *, as_json: bool) -> Result:
    from toolchain import board as board_files
    from toolchain import bundle as bundles
    from toolchain import export as exporting
    from toolchain.architecture import is_android, program_triple
    from toolchain.native import programs

    target, folder = options.target, options.output.endswith("/") or options.target.is_dir()
    exporting.check_target(options.form, target, folder=folder)
    with bundles.at_hand(source) as bundle:
        board = board_files.load(bundle.manifest.board).resolved()
        bundles.check_board(bundle.manifest, board)
        device = options.device(board)
        if device and device.root:
            board = dataclasses.replace(board, root=device.root)
        if options.musl and is_android(bundle.manifest.triple):
            raise InputError("--musl is not for Android, which has a C library of its own", hint="leave --musl out")
        triple = program_triple(bundle.manifest.triple, musl=options.musl)
        program = programs.build(programs.RUNNER, triple, bundle.manifest.machine, console.say)
        run_table, slot = device.for_slot(options.slot).run if device else None, options.slot
        with exporting.prepare(bundle, board, program, run_table, slot=slot, unchecked=options.unchecked) as update:
            update_file = exporting.write(
                options.form, update, target, folder=folder, compatible=options.compatible or ""
            )
        unchecked = bundle.reference is None  # inside the block: afterwards the files of a package are gone
    document = {
        "kind": options.form,
        "path": str(update_file.path),
        "update": f"sha256:{update_file.sha256}",
        "bytes": update_file.size,
        "release": f"sha256:{bundle.digest}",
        "model": bundle.manifest.name,
        "board": bundle.manifest.board,
        "slot": options.slot,
        "unchecked": unchecked,
    }
    text = f"{update_file.path}: {size_text(update_file.size)}, update sha256:{update_file.sha256}"
    text += "; UNCHECKED: the package has no reference outputs to compare with" if unchecked else ""
    return Result(text, document, as_json)
