"""A package becomes an update: what is applied on a device without a network."""

from __future__ import annotations

from pathlib import Path

import click

from toolchain.cli import options
from toolchain.cli.console import Console, Result
from toolchain.progress import size_text


@click.command("export")
@click.argument("source", metavar="PACKAGE", type=options.PATH)
@click.option(
    "--as", "kind", type=click.Choice(["offline"]), default="offline", show_default=True, help="What to write."
)
@click.option("-o", "--output", required=True, help="The update: a file such as update.run, or a folder, FOLDER/.")
@options.json_flag
@click.pass_obj
def export(console: Console, source: Path, kind: str, output: str, *, as_json: bool) -> Result:
    """Write PACKAGE (or a bundle's folder) as an update that a device applies without a network."""
    import tempfile

    from toolchain import board, bundle
    from toolchain import export as exporting
    from toolchain.native import programs

    target, folder = Path(output), output.endswith("/") or Path(output).is_dir()
    exporting.check_target(target, folder=folder)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        made = bundle.opened(source, Path(scratch) / "bundle")
        device = board.load(made.manifest.board).resolved()
        program = programs.build(programs.RUNNER, made.manifest.triple, made.manifest.machine, console.say)
        with exporting.prepared(made, device, program) as update:
            written = exporting.write(update, target, folder=folder)
    document = {
        "kind": kind,
        "path": str(written.path),
        "update": f"sha256:{written.sha256}",
        "bytes": written.size,
        "release": f"sha256:{made.digest}",
        "model": made.manifest.name,
        "board": made.manifest.board,
    }
    text = f"{written.path}: {size_text(written.size)}, update sha256:{written.sha256}"
    return Result(f"{text}\nhint: `sh {written.path.name} --help` on the device", document, as_json)
