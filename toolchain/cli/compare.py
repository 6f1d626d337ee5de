"""The `compare` command: a model runs untuned and tuned, in turns, on a device."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, declare
from toolchain.cli.connection import DeviceOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, record
from toolchain.cli.reports import write_reports
from toolchain.errors import InputError, ToolchainError

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.pipeline.compare import Comparison
    from toolchain.pipeline.source import BundleSource


@dataclass(frozen=True)
class CompareOptions:
    """The options of `compare`."""

    device: DeviceOptions = record(DeviceOptions)
    toolchain: str | None = common.toolchain()
    model: common.ModelOptions = record(common.ModelOptions)
    inputs: common.InputOptions = record(common.InputOptions)
    compiling: common.CompileOptions = record(common.CompileOptions)
    measuring: common.TurnOptions = record(common.TurnOptions)
    tolerance: float | None = common.tolerance()
    html_path: Path | None = common.html()

    def sources(self, source: str, board: Board, console: Console) -> tuple[BundleSource, BundleSource]:
        """Return the sources of the untuned and the tuned bundle; untuned means without the user's own records."""
        from toolchain.pipeline.source import BundleSource
        from toolchain.progress import Stages
        from toolchain.records import SHIPPED

        model, tuned = self.model.plain_model(source, self.inputs), self.compiling
        if tuned.no_records:
            raise InputError(
                "compare needs the tuning records that --no-records leaves out", hint="leave --no-records out"
            )
        # The shipped records are the base, unless they are what is measured: then the base has no records at all.
        only_shipped = str(tuned.records) == SHIPPED
        untuned = dataclasses.replace(tuned, records=None if only_shipped else Path(SHIPPED), no_records=only_shipped)
        emulated = self.device.device(board).emulated
        first, second = (
            BundleSource(
                compiling.request(
                    model, board, console.say, self.toolchain, emulated=emulated, threads=self.measuring.threads
                ),
                Stages(console.say),
            )
            for compiling in (untuned, tuned)
        )
        return first, second

    def tuning_command(self, source: str) -> str:
        """Return the command line that tunes a model for the device."""
        argv = ["toolchain", "tune", source]
        argv += ["--board", self.device.board_name] if self.device.board_name else []
        argv += ["--host", self.device.host] if self.device.host else []
        argv += self.model.shape_arguments
        argv += [*self.inputs.arguments, *self.compiling.kernels.precision_arguments]
        return shlex.join(argv)


@declare.command(common.PAGES)
@common.model_argument
@gather("options", CompareOptions)
@declare.json_flag
@click.pass_obj
def compare(console: Console, /, source: str, options: CompareOptions, *, as_json: bool) -> Result:
    """MODEL runs untuned and tuned in turns on a device."""
    from toolchain.pipeline import compare as comparing
    from toolchain.pipeline import preflight
    from toolchain.pipeline.pages import compared

    board = options.device.board(**options.compiling.kernels.precision)
    sources = options.sources(source, board, console)
    remedy = options.tuning_command(source)
    if not sources[1].has_records():
        sources[1].load()  # a misspelt model name is the better error
        request, why = sources[1].request, "there are no tuning records for the board"
        raise comparing.nothing_to_compare(request.model.source, request.board.name, why, remedy)
    checks = preflight.before_build(sources[1], functools.partial(open_device, board, options.device, console.say))
    connect = functools.partial(open_device, board, options.device, progress=console.say)
    comparison = comparing.build_and_compare(
        sources, checks.subject, connect, options.measuring.settings(None, options.tolerance), remedy
    )
    result = Result(comparing.table(comparison), comparison.document(), as_json)
    return write_reports(result, None, {options.html_path: lambda: compared.html(comparison).encode()})


def compare_end_to_end(console: Console, source: str, options: CompareOptions) -> Comparison | str:
    """Compare a model that was just tuned with its untuned build; return the reason if that is not possible.

    The tuning records are written by now, so an error here must not end the command.
    """
    from toolchain.pipeline import compare as comparing

    board = options.device.board(**options.compiling.kernels.precision)
    connect = functools.partial(open_device, board, options.device, progress=console.say)
    settings, remedy = options.measuring.settings(None, options.tolerance), options.tuning_command(source)
    try:
        return comparing.build_and_compare(options.sources(source, board, console), None, connect, settings, remedy)
    except comparing.SameCodeError:
        return "tuning found nothing faster, so the code is the same"
    except ToolchainError as fault:
        return f"{fault.message}{fault.details and f': {fault.details}'}"
