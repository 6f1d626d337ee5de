"""A package becomes an update: what is applied on a device without a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import click

from toolchain.cli import options
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gathered, option
from toolchain.errors import InputError
from toolchain.progress import size_text


@dataclass(frozen=True)
class ExportOptions:
    """The options of `export`."""

    kind: str = option(
        "--as", type=click.Choice(["offline", "mender", "rauc"]), default="offline", show_default=True,
        help="What to write: a file for a shell, an artifact of Mender, or what RAUC bundles.",
    )  # fmt: skip
    output: str = option(
        "-o", "--output", required=True, default="", help="The update: a file such as update.run, or a folder, FOLDER/."
    )
    compatible: str | None = option(
        "--compatible", help="What Mender or RAUC calls this type of device; the board's name by default."
    )

    def check(self) -> None:
        """Refuse what could not be written, or would do nothing.

        Raises:
            InputError: There is such a thing.
        """
        if self.compatible is None:
            return
        if self.kind == "offline":
            raise InputError("--compatible is for Mender and RAUC", hint="leave it out, or add --as mender")
        if not re.fullmatch(r"[\w.+-]+", self.compatible, re.ASCII):
            raise InputError(f"--compatible {self.compatible!r} is no name", hint="letters, digits, and any of .+-_")


@click.command("export")
@click.argument("source", metavar="PACKAGE", type=options.PATH)
@gathered("asked", ExportOptions)
@options.json_flag
@click.pass_obj
def export(console: Console, /, source: Path, asked: ExportOptions, *, as_json: bool) -> Result:
    """Write PACKAGE (or a bundle's folder) as an update that a device applies without a network."""
    import tempfile

    from toolchain import board, bundle
    from toolchain import export as exporting
    from toolchain.native import programs

    asked.check()
    target, folder = Path(asked.output), asked.output.endswith("/") or Path(asked.output).is_dir()
    exporting.check_target(asked.kind, target, folder=folder)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        made = bundle.opened(source, Path(scratch) / "bundle")
        device = board.load(made.manifest.board).resolved()
        program = programs.build(programs.RUNNER, made.manifest.triple, made.manifest.machine, console.say)
        with exporting.prepared(made, device, program) as update:
            written = exporting.write(asked.kind, update, target, folder=folder, compatible=asked.compatible or "")
    document = {
        "kind": asked.kind,
        "path": str(written.path),
        "update": f"sha256:{written.sha256}",
        "bytes": written.size,
        "release": f"sha256:{made.digest}",
        "model": made.manifest.name,
        "board": made.manifest.board,
    }
    text = f"{written.path}: {size_text(written.size)}, update sha256:{written.sha256}"
    return Result(text, document, as_json)
