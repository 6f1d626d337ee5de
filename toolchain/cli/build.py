"""Commands that build a model into a bundle, pack a bundle as a package, and list what a package contains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from toolchain.cli import common, helptext
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.cli.reports import ReportingCommand, write_reports
from toolchain.errors import InputError
from toolchain.progress import size_text
from toolchain.report import Table


@dataclass(frozen=True)
class BuildOptions:
    """The options of `build`."""

    board: BoardOptions = record(BoardOptions)
    output: Path | None = option(
        "-o", "--output", type=common.PATH, metavar="FOLDER", help="Folder for the bundle. Default: build/MODEL-BOARD."
    )
    toolchain: str | None = common.toolchain()
    model: common.ModelOptions = record(common.ModelOptions)
    inputs: common.InputOptions = record(common.InputOptions)
    compiling: common.CompileOptions = record(common.CompileOptions)
    threads: int | None = option(
        "--threads",
        type=click.IntRange(1, 1024),
        help="Apply records that were tuned for N threads. Default: as in the board file.",
    )
    samples: int = common.samples("Store the reference outputs of N random inputs, for `deploy --samples`.")
    cost: bool = common.cost("Show the cost of each kernel")
    html_path: Path | None = common.html()


@click.command("build", cls=ReportingCommand, reports=common.PAGES)
@common.model_argument
@gather("options", BuildOptions)
@common.json_flag
@click.pass_obj
def build(console: Console, /, source: str, options: BuildOptions, *, as_json: bool) -> Result:
    """Compile a model for a board into a bundle.

    MODEL is a predefined network or an .onnx file.
    """
    from toolchain.device.stages import Stages
    from toolchain.pipeline import built, preflight
    from toolchain.pipeline.source import BundleSource

    board = options.board.board(**options.compiling.kernels.precision)
    model = options.model.model(source, options.inputs)
    request = options.compiling.request(model, board, console.say, options.toolchain, threads=options.threads)
    # before the build: a missing cost model is reported at once
    cost_model = request.backend.cost_model(console.say) if options.cost else None
    bundle_source = BundleSource(request, Stages(console.say), samples=options.samples)
    bundle = bundle_source.build(options.output, preflight.before_compile(bundle_source))
    report = built.Built(bundle, built.estimate_costs(bundle, board, cost_model) if cost_model else None)
    result = Result(report.render_text(), report.document(), as_json, report.refusal())
    return write_reports(result, None, {options.html_path: lambda: report.html().encode()})


@click.command("package", cls=helptext.Command)
@click.argument("source", metavar="FOLDER", type=common.PATH)
@helptext.option(
    "-o", "--output", type=common.PATH, required=True, help="Where to write the package, such as model.oci.tar."
)
@helptext.option(
    "--unpack",
    is_flag=True,
    help="Unpack a package instead: FOLDER is the package, and --output is the folder for its bundle.",
)
@common.json_flag
def package(source: Path, output: Path, *, unpack: bool, as_json: bool) -> Result:
    """Pack a bundle as one archive.

    FOLDER is the folder of the bundle. The archive has the OCI image layout.
    """
    from toolchain import bundle as bundles

    if unpack:
        return _unpack(source, output, as_json)
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


@click.command("inventory", cls=helptext.Command)
@click.argument("package", type=common.PATH)
@helptext.option(
    "--provenance", is_flag=True, help="Show how it was built, as an in-toto statement with SLSA provenance."
)
@common.json_flag
def inventory(package: Path, *, provenance: bool, as_json: bool) -> Result:
    """List what a package contains and what built it.

    PACKAGE is a package or the folder of a bundle. --json prints CycloneDX.
    """
    from toolchain import bundle as bundles
    from toolchain import files
    from toolchain.bundle import inventories

    with bundles.at_hand(package) as bundle:
        document = inventories.document(bundle, bundles.PROVENANCE if provenance else bundles.BILL)
        if provenance:
            return Result(files.canonical_json(document).decode(), document, as_json)
        rows = [
            (component.name, component.version, component.kind, "runtime" if component.required else "build only")
            for component in inventories.components(bundle)
        ]
    return Result(Table(rows, ("NAME", "VERSION", "KIND", "USED FOR"), spare=(2,)), document, as_json)
