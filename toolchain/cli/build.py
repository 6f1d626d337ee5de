"""A model becomes a bundle, and a bundle a package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from toolchain.cli import options
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gathered, option, record
from toolchain.cli.reports import ReportingCommand, written
from toolchain.errors import InputError
from toolchain.progress import size_text


@dataclass(frozen=True)
class BuildOptions:
    """The options of `build`."""

    board: BoardOptions = record(BoardOptions)
    output: Path | None = option(
        "-o", "--output", type=options.PATH, help="Folder for the bundle; build/MODEL-BOARD by default."
    )
    toolchain: str | None = options.toolchain()
    model: options.ModelOptions = record(options.ModelOptions)
    inputs: options.InputOptions = record(options.InputOptions)
    compiling: options.CompileOptions = record(options.CompileOptions)
    threads: int | None = option(
        "--threads", type=click.IntRange(1, 1024), help="Apply what was tuned for so many threads; the board file's."
    )
    samples: int = options.samples("Keep the reference's outputs for so many random inputs, for `deploy --samples`.")
    cost: bool = options.cost("Say what each kernel costs")
    html_path: Path | None = options.html()


@click.command("build", cls=ReportingCommand, reports=options.PAGES)
@options.model_argument
@gathered("asked", BuildOptions)
@options.json_flag
@click.pass_obj
def build(console: Console, /, source: str, asked: BuildOptions, *, as_json: bool) -> Result:
    """Compile MODEL (a zoo name or an .onnx file) for a board into a bundle."""
    from toolchain.pipeline import Pipeline, built, preflight

    kind = asked.board.board(**asked.compiling.kernels.precision)
    wanted = asked.model.model(source, asked.inputs)
    request = asked.compiling.request(wanted, kind, console.say, asked.toolchain, threads=asked.threads)
    model = request.backend.cost_model(console.say) if asked.cost else None  # what cannot be had is told at once
    job = Pipeline(request, samples=asked.samples)
    made = job.build(asked.output, preflight.before_compile(job))
    found = built.Built(made, built.costs(made, kind, model) if model else None)
    result = Result(found.shown(), found.document(), as_json, found.refusal())
    return written(result, None, {asked.html_path: lambda: found.html().encode()})


@click.command("package")
@click.argument("source", metavar="FOLDER", type=options.PATH)
@click.option("-o", "--output", type=options.PATH, required=True, help="The package, such as model.oci.tar.")
@click.option("--unpack", is_flag=True, help="Unpack: FOLDER is a package, and --output is the folder for its bundle.")
@options.json_flag
def package(source: Path, output: Path, *, unpack: bool, as_json: bool) -> Result:
    """Pack the bundle in FOLDER as one OCI image-layout archive."""
    from toolchain import bundle

    if unpack:
        return _unpacked(source, output, as_json)
    bundle.check_package_target(output)
    made = bundle.load(source)
    bundle.pack(made, output)
    size = output.stat().st_size
    document = {"package": str(output), "digest": f"sha256:{made.digest}", "bytes": size}
    return Result(f"{output}: {size_text(size)}, sha256:{made.digest}", document, as_json)


def _unpacked(source: Path, output: Path, as_json: bool) -> Result:  # noqa: FBT001 - as the command has it
    from toolchain import bundle

    if source.is_dir():
        raise InputError(f"{source} is a folder, not a package", hint="leave --unpack out to pack the bundle in it")
    bundle.check_target(output)
    unpacked = bundle.unpack(source, output)
    document = {"bundle": str(output), "digest": f"sha256:{unpacked.digest}"}
    text = f"{output}: {unpacked.manifest.name} for {unpacked.manifest.board}, sha256:{unpacked.digest}"
    return Result(text, document, as_json)
