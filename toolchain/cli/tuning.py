"""The commands `tasks`, `tune`, `hardware` and `python-runtime`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain.cli import common, compare, connection, declare, values
from toolchain.cli.connection import BoardOptions, DeviceOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.reports import write_reports
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.farm.boards import BoardRequest
    from toolchain.pipeline.preflight import Connect
    from toolchain.pipeline.tune import TuneRequest
    from toolchain.report import Table
    from toolchain.tuning.report import TuneReport


@dataclass(frozen=True)
class TuneOptions:
    """The options of `tune`."""

    device: DeviceOptions = record(DeviceOptions)
    toolchain: str | None = common.toolchain()
    model: common.ModelOptions = record(common.ModelOptions)
    inputs: common.InputFileOptions = record(common.InputFileOptions)
    search: common.SearchOptions = record(common.SearchOptions)
    kernels: common.KernelOptions = record(common.KernelOptions)
    threads: int | None = same(common.MeasureOptions, "threads")
    operators: tuple[str, ...] = option(
        "--op", metavar="TASK", multiple=True, help="Only these tasks: an operator, a part of a name, or an ID."
    )
    records: Path | None = option(
        "--records", type=common.PATH, help="File of tuning records. Default: yours, or the project's."
    )
    tracker: str | None = option(
        "--tracker", metavar="HOST:PORT", help="Use the boards of this TVM tracker instead of the farm."
    )
    max_boards: int | None = option(
        "--boards",
        metavar="N",
        type=click.IntRange(1, 10_000),
        help="Use at most N boards of the farm. Default: all, shared with others who wait.",
    )
    key: str | None = option(
        "--key", metavar="NAME", help="Key of the boards at that tracker. Default: the board type."
    )
    modelled: bool = option(
        "--modelled",
        is_flag=True,
        help="Use no board: rank candidates by a model of its GPU. The records are kept apart.",
    )
    prune: float | None = option(
        "--prune",
        metavar="TIMES",
        type=values.Limit(min=1.0, max=1000.0),
        help="Skip candidates that, by a model of the GPU, spill or cost more than TIMES the best one.",
    )
    fresh: bool = option("--fresh", is_flag=True, help="Ignore existing records and measure again.")
    no_compare: bool = option("--no-compare", is_flag=True, help="Do not compare the whole model at the end.")
    builders: common.BuilderOptions = record(common.BuilderOptions)
    html_path: Path | None = common.html()

    def request(self, source: str, *, passing: bool) -> TuneRequest:
        """Return what to tune; `passing` says that the file of records is temporary.

        Raises:
            InputError: Options cannot be combined, or there is no such board, task or template.
        """
        from toolchain.pipeline import tune

        # --modelled uses no board, no links and no runs, so options about them have no effect.
        others: dict[str, Any] = {"--host": self.device.host, "--place": self.device.place, "--tracker": self.tracker}
        others |= {"--prune": self.prune, "--toolchain": self.toolchain, "--threads": self.threads}
        others |= {"--boards": self.max_boards, "--builders": self.builders.builders_at}
        if self.modelled and (conflicting := [name for name, value in others.items() if value]):
            raise InputError(
                f"--modelled and {conflicting[0]} cannot be combined",
                hint="without --modelled, candidates are measured on a board",
            )
        board = self.device.board(**self.kernels.precision)
        return tune.TuneRequest(
            model=self.model.plain_model(source, self.inputs),
            boards=self.device.board_request(board, Path(source).stem, self.tracker, self.key, self.max_boards or 0),
            plan=dataclasses.replace(
                tune.plan_for(board, self.search.plan(board, self.model.seed, self.threads)),
                prune=self.prune or 0.0,
                fresh=self.fresh,
            ),
            operators=self.operators,
            records=self.records,
            passing=passing,
            toolchain=self.toolchain or "",
            without=self.kernels.excluded_templates(board),
            modelled=self.modelled,
            builders=self.builders.scheduler(),
        )

    def compare_options(self, report: TuneReport) -> compare.CompareOptions:
        """Return the options of the final comparison: on the board with most trials, if no device is named."""
        is_named = self.device.host or self.device.place or self.device.board().connection == "local"
        busiest = max(report.boards, key=lambda board: board.trials, default=None)
        device = self.device if is_named or busiest is None else dataclasses.replace(self.device, host=busiest.name)
        return compare.CompareOptions(
            device=device,
            toolchain=self.toolchain,
            model=self.model,
            inputs=common.InputOptions(self.inputs.npz, self.inputs.image, self.inputs.sound),
            compiling=common.CompileOptions(records=self.records, kernels=self.kernels),
            measuring=common.TurnOptions(threads=self.threads),
        )


@dataclass(frozen=True)
class TaskOptions:
    """The options of `tasks`."""

    board: BoardOptions = record(BoardOptions)
    model: common.ModelOptions = record(common.ModelOptions)
    inputs: common.InputFileOptions = record(common.InputFileOptions)
    kernels: common.KernelOptions = record(common.KernelOptions)
    operators: tuple[str, ...] = same(TuneOptions, "operators")
    cost: bool = common.cost("Show the cost of each untuned kernel, the highest first")


@declare.command()
@common.model_argument
@gather("options", TaskOptions)
@declare.json_flag
@click.pass_obj
def tasks(console: Console, /, source: str, options: TaskOptions, *, as_json: bool) -> Result:
    """For each one: shape, operator, weight (how often the model runs it) and work."""
    from toolchain.compile.request import BuildRequest
    from toolchain.pipeline import task_costs, tune
    from toolchain.records import tasks as extracted

    board = options.board.board(**options.kernels.precision)
    request = BuildRequest(
        options.model.plain_model(source, options.inputs), board, without=options.kernels.excluded_templates(board)
    )
    # before the extraction: a missing cost model is reported at once
    model = request.backend.cost_model(console.say) if options.cost else None
    extraction = tune.extract(request)
    chosen = extracted.select(extraction.tasks, options.operators)
    costs = task_costs.estimate_costs(chosen, extraction.backend, model)
    total = sum(task.weight * task.gflop for task in chosen)
    lines: list[str | Table] = [
        task_costs.table(costs),
        f"{len(costs)} tasks, {total:.4f} GFLOPs a run",
        *task_costs.summary(costs, model),
    ]
    names = ("id", "name", "operator", "shape", "weight", "gflop", "workload")
    document: list[dict[str, Any]] = []
    for cost in costs:
        row = {name: getattr(cost.task, name) for name in names}
        row["args"] = [dataclasses.asdict(argument) for argument in cost.task.args]
        document.append(row if cost.estimate is None else {**row, "modelled": cost.document()})
    return Result(lines, document, as_json)


@declare.command(common.PAGES)
@common.model_argument
@gather("options", TuneOptions)
@declare.json_flag
@click.pass_obj
def tune(console: Console, /, source: str, options: TuneOptions, *, as_json: bool) -> Result:
    """All boards are of one type. The same command resumes an interrupted run."""
    from toolchain.tuning import report as reports

    report = run_tune(console, source, options)
    if not options.no_compare:
        report = _compare_end_to_end(console, source, options, report)
    result = Result(reports.page(report).printed(), report.document(), as_json)
    return write_reports(result, None, {options.html_path: lambda: reports.page(report).html().encode()})


def run_tune(console: Console, source: str, options: TuneOptions, *, passing: bool = False) -> TuneReport:
    """Tune a model; `deploy --trials` and `survey` do it as well.

    Args:
        console: Shows the progress.
        source: Zoo name or path of an ONNX file.
        options: The options.
        passing: Whether the file of records is temporary, so that no message suggests to resume from it.
    """
    from toolchain.pipeline import preflight
    from toolchain.pipeline import tune as tuning
    from toolchain.pipeline.source import BundleSource

    request = options.request(source, passing=passing)
    if not options.modelled:
        preflight.before_build(BundleSource(request.build(console.say)), _connector(options.device, request.boards))
    return tuning.run(request, console.say, console.redraw)


def _compare_end_to_end(console: Console, source: str, options: TuneOptions, report: TuneReport) -> TuneReport:
    """Compare the whole tuned model with a build without the user's records, as `compare` does.

    A kernel that is faster alone can slow down the model; if the tuned model is slower, the new records are retracted.
    """
    from toolchain.pipeline.compare import Comparison
    from toolchain.records import RecordFile, default_path
    from toolchain.tuning import finals
    from toolchain.tuning.report import EndToEnd

    reasons = (
        (report.modelled, "a model stood in for the boards"),
        (report.emulated, "an emulator's times say nothing"),
        (options.tracker, "a tracker's boards run single kernels alone"),
    )
    why = next((text for applies, text in reasons if applies), "")
    comparison = why or compare.compare_end_to_end(console, source, options.compare_options(report))
    if not isinstance(comparison, Comparison):
        return dataclasses.replace(report, end_to_end=EndToEnd(f"not compared: {comparison}"))
    report = dataclasses.replace(
        report, end_to_end=EndToEnd(comparison.outcome, comparison.warnings, comparison.document())
    )
    if comparison.ratio.verdict != "slower":
        return report
    return finals.take_back(report, RecordFile(options.records or default_path(report.board)))


def _connector(device: DeviceOptions, request: BoardRequest) -> Connect | None:
    """Return how to connect to the device for the checks before a run; None if the run does not connect to it itself.

    Boards of a tracker or the farm were checked when they were served, and may be in use by others now; an emulated
    board that a model replaces has nothing to check.
    """
    from toolchain.farm import boards

    board = request.board
    if board.connection == "local" or board.emulated or request.tracker or boards.is_served(request):
        return None
    return lambda: open_device(board, device)


@declare.command()
@connection.device_options
@declare.json_flag
@click.pass_obj
def hardware(console: Console, /, device: DeviceOptions, *, as_json: bool) -> Result:
    """The device reports its hardware over RPC."""
    from toolchain.farm import boards
    from toolchain.pipeline import preflight
    from toolchain.rpc import hardware as examined

    board = device.board()
    rows, lines = [], []
    request = device.board_request(board, "hardware")
    if connector := _connector(device, request):
        preflight.before_serving(board, connector)
    with boards.open_boards(request, console.say) as lease:
        for endpoint in lease.places:
            description, notes = examined.examine(board, endpoint)
            rows.append({"board": endpoint.name, "hardware": description, "notes": notes})
            lines += [f"{endpoint.name}: {description or 'unknown'}", *(f"warning: {note}" for note in notes)]
    return Result("\n".join(lines), rows, as_json)


@declare.command()
@connection.board_options
@declare.json_flag
@click.pass_obj
def python_runtime(console: Console, /, board: BoardOptions, *, as_json: bool) -> Result:
    """It is the device runtime that TVM lacks for the accelerator of the board. Every later `import tvm` loads it:
    `tvm.device(KIND).exist` then says whether this machine has such a device.
    """
    from toolchain.backends import backend_of

    path = backend_of(board.board()).python_runtime(console.say)
    return Result(f"{path}: loaded with every import of tvm", {"library": str(path)}, as_json)
