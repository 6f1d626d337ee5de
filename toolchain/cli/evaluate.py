"""The `evaluate` command: a metric on the user's own data, on the device and in ONNX Runtime."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import click

from toolchain.cli import assignments, common, declare, values
from toolchain.cli.connection import SlotOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.registry import RegistryOptions
from toolchain.cli.reports import JUNIT, PAGE, json_kind, write_reports
from toolchain.cli.samples import DATA, METRICS, SampleOptions


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `evaluate`."""

    data: Path = option(
        "--data",
        type=common.PATH,
        required=True,
        help=f"Samples: {DATA}.",
    )
    metric: str = option(
        "--metric",
        metavar="METRIC",
        required=True,
        help=f"What to compare: {METRICS}.",
    )
    model: Path | None = option(
        "--model",
        type=common.PATH,
        help="The float model, which ONNX Runtime runs. Default: the zoo's network that the package was built from.",
    )
    compiled: Path | None = option(
        "--compiled",
        type=common.PATH,
        help="The file that the package was built from, if it is another one (int8): ONNX Runtime runs it, too.",
    )
    labels: Path | None = same(SampleOptions, "labels")
    preprocess: str = same(SampleOptions, "preprocess")
    limit: int | None = same(SampleOptions, "limit")
    postprocess: str = same(SampleOptions, "postprocess")
    pictures: Path | None = same(SampleOptions, "pictures")
    most_lost: float | None = option(
        "--most-lost",
        metavar="POINTS",
        type=values.Limit(min=0.0),
        help="Fail if the device loses more than POINTS, in the unit of the metric, at 99 % confidence.",
    )
    device: SlotOptions = record(SlotOptions)
    threads: int | None = same(common.MeasureOptions, "threads")
    variant: str = common.one_variant()
    fixed: tuple[str, ...] = same(common.ModelOptions, "fixed")
    seed: int = option("--seed", default=0, show_default=True, help="Seed of a zoo network's weights.")
    json_path: Path | None = same(common.ReportOptions, "json_path")
    junit_path: Path | None = same(common.ReportOptions, "junit_path")
    html_path: Path | None = common.html()
    registry: RegistryOptions = record(RegistryOptions)


REPORTS = {"--json": json_kind("an evaluation", "schema_version", "comparisons"), "--junit": JUNIT, "--html": PAGE}


@declare.command(REPORTS)
@click.argument("source", metavar="PACKAGE", callback=common.explain_name("path"))
@gather("options", EvaluateOptions)
@click.pass_obj
def evaluate(console: Console, /, source: str, options: EvaluateOptions) -> Result:
    """PACKAGE is a package, the folder of a bundle, an address in a registry, or a release that the device keeps:
    `current`, its number, or its digest. An interrupted evaluation continues when the command is repeated.

    Exit codes with --most-lost: 0: no more is lost. 6: more is lost. 7: inconclusive (too few samples).
    """
    from toolchain.pipeline import ab
    from toolchain.pipeline import evaluate as evaluating
    from toolchain.pipeline.evaluate import pages

    board = options.device.board()
    options.registry.check(source)
    request = evaluating.EvaluationRequest(
        release=ab.Request(
            names=(source,),
            board=board,
            connect=functools.partial(open_device, board, options.device, console.say),
            progress=console.say,
            access=options.registry.access(),
            variant=options.variant,
        ),
        samples=evaluating.SampleRequest(
            options.data,
            options.metric,
            options.labels,
            options.preprocess,
            options.limit,
            options.postprocess,
            options.pictures,
        ),
        files=evaluating.ModelFiles(
            str(options.model or ""), str(options.compiled or ""), assignments.parse_fixed(options.fixed), options.seed
        ),
        most_lost=options.most_lost,
        threads=options.threads or 0,
    )
    result = evaluating.evaluate(request)
    page = pages.page(result)
    others = {options.junit_path: lambda: pages.junit(result), options.html_path: lambda: page.html().encode()}
    text = Result(page.printed(), result.document(), fault=result.fault())
    return write_reports(text, options.json_path, others)
