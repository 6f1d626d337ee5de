"""The command `build`: compile a model into a bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import click

from toolchain.cli import common, declare
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.cli.reports import write_reports
from toolchain.cli.steps import StepOptions


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
    steps: StepOptions = record(StepOptions)
    compiling: common.CompileOptions = record(common.CompileOptions)
    threads: int | None = option(
        "--threads",
        type=click.IntRange(1, 1024),
        help="Choose kernels for N threads, with their tuning records. Default: as in the board file.",
    )
    samples: int = common.samples("Store the reference outputs of N random inputs, for `deploy --samples`.")
    reference: Path | None = option(
        "--reference",
        type=common.PATH,
        metavar="BUNDLE",
        help="Take the reference of this bundle, if ONNX Runtime agrees with it here: the same digest on other CPUs.",
    )
    supported_until: datetime | None = option(
        "--supported-until",
        metavar="DATE",
        type=click.DateTime(["%Y-%m-%d"]),
        help="Last day for which you promise updates, such as 2031-12-31, for the manifest.",
    )
    cost: bool = common.cost("Show the cost of each kernel")
    html_path: Path | None = common.html()


@declare.command(common.PAGES)
@common.model_argument
@gather("options", BuildOptions)
@declare.json_flag
@click.pass_obj
def build(console: Console, /, source: str, options: BuildOptions, *, as_json: bool) -> Result:
    """MODEL is a predefined network or an .onnx file."""
    from toolchain.pipeline import built, preflight
    from toolchain.pipeline.source import BundleSource
    from toolchain.progress import Stages

    board = options.board.board(**options.compiling.kernels.precision)
    model = options.steps.add_to(options.model.model(source, options.inputs))
    request = options.compiling.request(model, board, console.say, options.toolchain, threads=options.threads)
    if options.supported_until:
        request = replace(request, supported_until=options.supported_until.date().isoformat())
    # before the build: a missing cost model is reported at once
    cost_model = request.backend.cost_model(console.say) if options.cost else None
    bundle_source = BundleSource(request, Stages(console.say), samples=options.samples, reference=options.reference)
    bundle = bundle_source.build(options.output, preflight.before_compile(bundle_source))
    report = built.Built(bundle, built.estimate_costs(bundle, board, cost_model) if cost_model else None)
    result = Result(report.render_text(), report.document(), as_json, report.refusal())
    return write_reports(result, None, {options.html_path: lambda: report.html().encode()})
