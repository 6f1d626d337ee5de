"""The `bench` command: the times of the release that a device runs, also at a rate, or beside another model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, connection, declare, values
from toolchain.cli.connection import SlotOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.reports import write_reports
from toolchain.device.rate import LEAST_PERIOD_S, LOADS, LONGEST_PERIOD_S, LONGEST_S, Load, Rate
from toolchain.devices import check_slot
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.device.connected import ConnectedDevice
    from toolchain.device.deploy import Settings
    from toolchain.models.inputs import Source

_USUAL_LENGTH_S = 60.0


@dataclass(frozen=True)
class RateOptions:
    """The rate of the application that a benchmark imitates."""

    period: float | None = option(
        "--period",
        metavar="TIME",
        type=values.Duration(LEAST_PERIOD_S, LONGEST_PERIOD_S),
        help="Then run the model once each TIME, such as 33ms, as an application does.",
    )
    length: float | None = option(
        "--for",
        metavar="TIME",
        type=values.Duration(LEAST_PERIOD_S, LONGEST_S),
        help="With --period: run for TIME, such as 10m. Ctrl-C reports what there is. Default: 1m.",
    )
    deadline: float | None = option(
        "--deadline",
        metavar="TIME",
        type=values.Duration(LEAST_PERIOD_S, LONGEST_S),
        help="With --period: a later result is counted as missed. Default: the period.",
    )
    load: Load | None = option(
        "--load",
        type=click.Choice(LOADS),
        help="With --period: keep the device's CPUs, memory or disk busy meanwhile.",
    )
    fifo: bool = option("--fifo", is_flag=True, help="With --period: use a real-time priority (SCHED_FIFO).")
    mlock: bool = option("--mlock", is_flag=True, help="With --period: lock the model's memory.")

    def rate(self) -> Rate | None:
        """Return the rate; None without --period.

        Raises:
            InputError: The options cannot be combined.
        """
        others = {"--for": self.length, "--deadline": self.deadline, "--load": self.load}
        others |= {"--fifo": self.fifo or None, "--mlock": self.mlock or None}
        if self.period is None:
            if unused := [name for name, value in others.items() if value is not None]:
                raise InputError(f"{unused[0]} needs --period", hint="add --period, such as --period 33ms")
            return None
        rate = Rate(
            self.period, self.length or _USUAL_LENGTH_S, self.deadline or self.period, self.load, self.fifo, self.mlock
        )
        if rate.for_s < rate.period_s:
            raise InputError("--for is shorter than --period: there would be one run", hint="write a longer --for")
        return rate


@dataclass(frozen=True)
class BenchOptions:
    """The options of `bench`."""

    device: SlotOptions = record(SlotOptions)
    seed: int = same(common.ModelOptions, "seed")
    inputs: common.InputOptions = record(common.InputOptions)
    measuring: common.MeasureOptions = record(common.MeasureOptions)
    report: common.ReportOptions = record(common.ReportOptions)
    energy: bool = option(
        "--energy", is_flag=True, help="Also measure the energy of an inference, which takes 20 s more."
    )
    rate: RateOptions = record(RateOptions)
    variant: str = option(
        "--variant",
        metavar="NAME",
        default="",
        help="Measure this variant of a release with several. Default: all, each for its part of the time.",
    )
    beside: str = option(
        "--beside",
        metavar="SLOT",
        default="",
        help="Measure what this release and that of another slot lose while both run, in turns with each alone.",
    )

    def check(self) -> Rate | None:
        """Return the rate to run at, or None; refuse options that cannot be combined.

        Raises:
            InputError: They cannot.
        """
        rate = self.rate.rate()
        if rate and self.energy:
            raise InputError(
                "--period and --energy cannot be combined: energy is measured back to back",
                hint="run the command twice, once with each",
            )
        if self.beside:
            self._check_beside()
        return rate

    def _check_beside(self) -> None:
        others: dict[str, object] = {"--period": self.rate.period, "--energy": self.energy or None}
        others |= {"--junit": self.report.junit_path, "--labels": self.inputs.labels}
        if used := [name for name, value in others.items() if value is not None]:
            raise InputError(
                f"--beside and {used[0]} cannot be combined",
                details="--beside compares the times of two models, alone and beside each other",
                hint="run the command twice, once with each",
            )
        check_slot(self.beside)


@declare.command(common.REPORTS)
@gather("options", BenchOptions)
@click.pass_obj
def bench(console: Console, /, options: BenchOptions) -> Result:
    from toolchain.pipeline import preflight
    from toolchain.pipeline.bench import bench_current
    from toolchain.progress import Stages

    rate, board = options.check(), options.device.board()
    settings = options.measuring.settings(options.inputs.labels)
    settings = dataclasses.replace(settings, energy=options.energy, rate=rate)
    with open_device(board, options.device, console.say) as device:
        preflight.before_bench(board, device)
        source = options.inputs.source(options.seed)
        if options.beside:
            return _bench_beside(console, options, device, source, settings)
        report = bench_current(source, device, settings, Stages(console.say), options.variant)
        warnings = connection.cpu_warnings(device, report.facts, options.device, options.measuring.threads)
    reason = options.device.resolve().reason
    return options.report.write(dataclasses.replace(report, board_reason=reason, warnings=warnings), "bench")


def _bench_beside(
    console: Console, options: BenchOptions, device: ConnectedDevice, source: Source, settings: Settings
) -> Result:
    from toolchain.pipeline import beside
    from toolchain.pipeline.pages import beside as pages
    from toolchain.progress import Stages

    result = beside.bench_beside(source, device, options.beside, settings, Stages(console.say), options.variant)
    notes = connection.cpu_warnings(device, device.store.facts(), options.device, options.measuring.threads)
    result = dataclasses.replace(result, board_reason=options.device.resolve().reason, notes=notes)
    page = pages.page(result)
    others = {options.report.html_path: lambda: page.html().encode()}
    return write_reports(Result(page.printed(), result.document()), options.report.json_path, others)
