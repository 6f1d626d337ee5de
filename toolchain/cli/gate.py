"""The `gate` command: compare a new package with the previous one on a device; fail if it is slower or wrong."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, connection, declare, helptext, values
from toolchain.cli.connection import SlotOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.registry import RegistryOptions
from toolchain.cli.reports import JUNIT, PAGE, json_kind, write_reports
from toolchain.cli.samples import SampleOptions
from toolchain.device.rate import LEAST_PERIOD_S, LONGEST_PERIOD_S, LONGEST_S, Rate
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.pipeline.gate import Gate, GateSettings
    from toolchain.pipeline.gate.accuracy import AccuracyLimit
    from toolchain.stats import Rule

_PERCENT = values.Limit(min=0.0, max=1000.0)
_ABOVE = values.Limit(min=0.0, max=1000.0, min_open=True)


@dataclass(frozen=True)
class RuleOptions:
    """The limits of a regression, and the confidence of the verdict."""

    least: float = option(
        "--least",
        metavar="PERCENT",
        type=_PERCENT,
        default=1.0,
        show_default=True,
        help="Regression limit in %: NEW fails if it is slower by more than this, at --confidence.",
    )
    worst: float = option(
        "--worst",
        metavar="PERCENT",
        type=_ABOVE,
        default=5.0,
        show_default=True,
        help="Pass limit in %: NEW passes if it is slower by less than this, at --confidence.",
    )
    rounds: int = option(
        "--rounds", default=64, show_default=True, type=click.IntRange(2, 1000), help="Largest number of rounds."
    )
    confidence: float = option(
        "--confidence",
        metavar="PERCENT",
        type=values.Limit(min=50.0, max=99.9999),
        default=99.0,
        show_default=True,
        help="Confidence of the verdict in %.",
    )

    def rule(self) -> Rule:
        """Return the statistical rule of the verdict.

        Raises:
            InputError: The rounds are too few for the confidence.
        """
        from toolchain.stats import Rule, least_rounds

        sure = self.confidence / 100
        if self.rounds < least_rounds(sure):
            raise InputError(
                f"{self.rounds} rounds are too few for a confidence of {self.confidence:g} %",
                hint=f"--rounds {least_rounds(sure)}, or a lower --confidence",
            )
        return Rule(self.least / 100, self.worst / 100, sure).within(self.rounds)


@dataclass(frozen=True)
class TailOptions:
    """The limit of p99.9 at the rate of the application."""

    p999: float | None = option(
        "--p999",
        metavar="TIME",
        type=values.Duration(LEAST_PERIOD_S, LONGEST_S),
        help="Also limit the p99.9 of NEW at the application's rate, such as 40ms. It needs --period.",
    )
    period: float | None = option(
        "--period",
        metavar="TIME",
        type=values.Duration(LEAST_PERIOD_S, LONGEST_PERIOD_S),
        help="With --p999: run NEW once each TIME, such as 33ms.",
    )
    length: float | None = option(
        "--for",
        metavar="TIME",
        type=values.Duration(LEAST_PERIOD_S, LONGEST_S),
        help="With --p999: run for TIME. Default: 8,500 periods.",
    )

    def rate(self) -> Rate | None:
        """Return the rate to measure at; None without a limit.

        Raises:
            InputError: The options cannot be combined, or the runs are too few for a verdict.
        """
        if self.p999 is None:
            others = {"--period": self.period, "--for": self.length}
            if unused := [name for name, value in others.items() if value is not None]:
                raise InputError(f"{unused[0]} has no effect without --p999", hint="add --p999, such as --p999 40ms")
            return None
        if self.period is None:
            raise InputError("--p999 needs --period", hint="add --period, such as --period 33ms")
        from toolchain.device import tail

        return tail.rate_of(self.p999, self.period, self.length)


@dataclass(frozen=True)
class GateOptions:
    """The options of `gate`."""

    base: str = option(
        "--base",
        metavar="OLD",
        required=True,
        callback=common.explain_name("path"),
        help="What to compare NEW with: as NEW, or a file whose only line is the digest of a package.",
    )
    device: SlotOptions = record(SlotOptions)
    rule: RuleOptions = record(RuleOptions)
    round_ms: int = option(
        "--round-ms",
        metavar="MS",
        default=120,
        show_default=True,
        type=click.IntRange(1, 60_000),
        help="Milliseconds that NEW and OLD each run in a round.",
    )
    threads: int | None = same(common.MeasureOptions, "threads")
    variant: str = common.one_variant()
    no_pin: bool = same(common.MeasureOptions, "no_pin")
    tolerance: float | None = common.tolerance()
    retrained: bool = option(
        "--retrained", is_flag=True, help="NEW has other weights: compare its outputs with its own reference only."
    )
    peak_memory: float | None = option(
        "--peak-memory",
        metavar="PERCENT",
        type=_ABOVE,
        help="Also limit the increase of the peak memory.",
    )
    load_time: float | None = option(
        "--load-time", metavar="PERCENT", type=_ABOVE, help="Also limit the increase of the time to load."
    )
    package_size: float | None = option(
        "--package-size",
        metavar="PERCENT",
        type=_PERCENT,
        help="Also limit the increase of the size of all files.",
    )
    tail: TailOptions = record(TailOptions)
    accuracy: float | None = option(
        "--accuracy",
        metavar="LIMIT",
        type=values.Limit(min=0.0),
        subject=helptext.ACCURACY,
        help="Also run NEW and OLD on --data: NEW may lose at most LIMIT, in the unit of --metric, at 99 % confidence.",
    )
    samples: SampleOptions = record(SampleOptions)
    allow_emulated: bool = option(
        "--allow-emulated", is_flag=True, help="Allow an emulated device; results are marked as emulated."
    )
    json_path: Path | None = same(common.ReportOptions, "json_path")
    junit_path: Path | None = same(common.ReportOptions, "junit_path")
    html_path: Path | None = common.html()
    registry: RegistryOptions = record(RegistryOptions)

    def settings(self) -> GateSettings:
        """Return the settings of the gate.

        Raises:
            InputError: The rounds are too few for the confidence, or the samples are wrong.
        """
        from toolchain.pipeline.gate import GateSettings

        shares = [
            None if percent is None else percent / 100
            for percent in (self.peak_memory, self.load_time, self.package_size)
        ]
        return GateSettings(
            rule=self.rule.rule(),
            round_s=self.round_ms / 1000,
            threads=self.threads or 0,
            pinned=not self.no_pin,
            tolerance=self.tolerance,
            peak_memory=shares[0],
            load_time=shares[1],
            package_size=shares[2],
            accuracy=self._accuracy_limit(),
            tail=self.tail.rate(),
            retrained=self.retrained,
            allow_emulated=self.allow_emulated,
        )

    def _accuracy_limit(self) -> AccuracyLimit | None:
        if self.accuracy is None:
            if names := self.samples.names:
                raise InputError(f"{names[0]} has no effect without --accuracy", hint="add --accuracy LIMIT")
            return None
        request = self.samples.request()
        if not request:
            hint = "for example: --accuracy 0.5 --data pictures/ --metric top1"
            raise InputError("--accuracy needs --metric and --data", hint=hint)
        from toolchain.pipeline.gate.accuracy import AccuracyLimit

        return AccuracyLimit(request.open(), self.accuracy)

    def write(self, outcome: Gate) -> Result:
        """Write the reports; return what to print, with the error of a gate that did not pass."""
        from toolchain.pipeline.gate import page, texts

        others = {self.junit_path: lambda: texts.junit(outcome), self.html_path: lambda: page.page(outcome).encode()}
        return write_reports(
            Result(texts.render_text(outcome), outcome.document(), fault=outcome.fault()), self.json_path, others
        )


REPORTS = {"--json": json_kind("a gate's report", "schema_version", "quantities"), "--junit": JUNIT, "--html": PAGE}


@declare.command(REPORTS)
@click.argument("source", metavar="NEW", callback=common.explain_name("path"))
@gather("options", GateOptions)
@click.pass_obj
def gate(console: Console, /, source: str, options: GateOptions) -> Result:
    """NEW and OLD run in turns on the device. Each is a package, the folder of a bundle, an address in a registry
    (oci://HOST/REPOSITORY@sha256:DIGEST), or a release that the device keeps: `current`, its number, or its digest.

    Exit codes: 0: NEW passes. 5: its outputs differ. 6: it is slower or worse. 7: inconclusive (noise, few samples).
    """
    from toolchain import registry
    from toolchain.pipeline import ab
    from toolchain.pipeline import gate as gating

    settings, board = options.settings(), options.device.board()
    names = (source, options.base)
    addresses = [name for name in names if registry.is_address(name)]
    for name in addresses or [name for name in names if not Path(name).is_file()][:1]:
        options.registry.check(name)
    request = ab.Request(
        names=names,
        board=board,
        connect=functools.partial(open_device, board, options.device, console.say),
        progress=console.say,
        access=options.registry.access(),
        variant=options.variant,
    )
    emulated = board.emulated or options.device.device(board).emulated
    warnings = functools.partial(connection.cpu_warnings, options=options.device, threads=options.threads)
    return options.write(gating.gate(request, settings, emulated=emulated, warnings=warnings))
