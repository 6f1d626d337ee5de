"""The `profile` command: the time of each kernel of a release on its device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, completion, declare
from toolchain.cli.connection import SlotOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.reports import PAGE, json_kind, write_reports
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.pipeline.profile import ProfileRequest

_JSON = json_kind("a profile", "schema_version", "board", "host")
_TRACE = json_kind("a trace", "traceEvents")


@dataclass(frozen=True)
class ProfileOptions:
    """The options of `profile`."""

    device: SlotOptions = record(SlotOptions)
    seed: int = same(common.ModelOptions, "seed")
    inputs: common.InputOptions = record(common.InputOptions)
    runs: int = option(
        "--runs",
        default=50,
        show_default=True,
        type=click.IntRange(3, 10_000),
        help="Number of runs, both with and without profiling.",
    )
    threads: int | None = same(common.MeasureOptions, "threads")
    variant: str = common.one_variant()
    no_pin: bool = same(common.MeasureOptions, "no_pin")
    against: str | None = option(
        "--against",
        metavar="RELEASE-OR-PACKAGE",
        help="Compare layer by layer with this package, bundle or release; both run in turns.",
    )
    json_path: Path | None = same(common.ReportOptions, "json_path")
    html: Path | None = common.html()
    trace: Path | None = option(
        "--trace", type=common.PATH, help="Write the trace of a typical run, for Perfetto or Chrome."
    )

    def request(self) -> ProfileRequest:
        """Return the settings of the profile."""
        from toolchain.pipeline.profile import ProfileRequest

        return ProfileRequest(self.runs, self.threads or 0, not self.no_pin)


@declare.command({"--json": _JSON, "--html": PAGE, "--trace": _TRACE})
@click.argument(
    "source",
    metavar="[PACKAGE]",
    required=False,
    shell_complete=completion.models,
    callback=common.explain_name("path"),
)
@gather("options", ProfileOptions)
@click.pass_obj
def profile(console: Console, /, source: str | None, options: ProfileOptions) -> Result:
    """PACKAGE is a package, the folder of a bundle, or a release that the device keeps (its number, or the beginning of
    its digest). Default: the current release. The command does not change which release is current.
    """
    from toolchain.pipeline import ab
    from toolchain.pipeline import profile as profiling
    from toolchain.pipeline.profile import against, pages

    if options.against and options.trace:
        raise InputError(
            "--trace and --against cannot be combined: a trace is of one release", hint="leave one of them out"
        )
    board = options.device.board()
    request = ab.Request(
        names=[source or "current", *([options.against] if options.against else [])],
        board=board,
        connect=functools.partial(open_device, board, options.device, console.say),
        progress=console.say,
        same=("inputs",),
        variant=options.variant,
    )
    inputs = options.inputs.source(options.seed)
    with ab.lock_sides(request, "profile") as locked:
        if options.against:
            new, base = locked.sides
            comparison = against.run((new, base), inputs, locked.program, locked.device, options.request(), console.say)
            page: dict[Path | None, Callable[[], bytes]] = {
                options.html: functools.partial(pages.comparison_page, comparison)
            }
            return write_reports(
                Result(against.render_text(comparison), comparison.document()), options.json_path, page
            )
        profile = profiling.run(locked.sides[0], inputs, locked.program, locked.device, options.request(), console.say)
        profile_page = pages.profile_page(profile)
        files: dict[Path | None, Callable[[], bytes]] = {
            options.html: lambda: profile_page.html().encode(),
            options.trace: profile.trace,
        }
        return write_reports(
            Result(pages.profile_page(profile).printed(), profile.document()), options.json_path, files
        )
