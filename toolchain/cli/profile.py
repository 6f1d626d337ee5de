"""The `profile` command: the time of each kernel of a release on its device."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, completion
from toolchain.cli.connection import DeviceOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.reports import PAGE, ReportingCommand, json_kind, write_reports
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.bundle import Bundle
    from toolchain.device.connected import ConnectedDevice
    from toolchain.pipeline.profile import ProfileRequest
    from toolchain.pipeline.sides import Side

_JSON = json_kind("a profile", "schema_version", "board", "host")
_TRACE = json_kind("a trace", "traceEvents")


@dataclass(frozen=True)
class ProfileOptions:
    """The options of `profile`."""

    device: DeviceOptions = record(DeviceOptions)
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


@click.command("profile", cls=ReportingCommand, reports={"--json": _JSON, "--html": PAGE, "--trace": _TRACE})
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
    """Show the time of each kernel of a release on its device.

    PACKAGE is a package, the folder of a bundle, or a release that the device keeps (its number, or the beginning of
    its digest). Default: the current release. The command does not change which release is current.
    """
    from toolchain.bundle import check_board
    from toolchain.device.lock import Owner
    from toolchain.device.stages import Stages
    from toolchain.pipeline import device_programs, preflight
    from toolchain.pipeline import profile as profiling
    from toolchain.pipeline.profile import against, pages

    if options.against and options.trace:
        raise InputError(
            "--trace and --against cannot be combined: a trace is of one release", hint="leave one of them out"
        )
    board = options.device.board()
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_open_local(name)) for name in (source or "current", options.against)]
        for _, bundle in opened:
            if bundle:
                check_board(bundle.manifest, board)
        device = stack.enter_context(open_device(board, options.device, console.say))
        preflight.before_bench(board, device)
        program = device_programs.runner(board, Stages(console.say))
        inputs = options.inputs.source(options.seed)
        stack.enter_context(device.store.lock(Owner.here("profile")))
        # Resolved under the lock: a deploy that held it may have changed `current`, or removed the release.
        sides = [_resolve_side(name, bundle, board, device) for name, bundle in opened if name]
        if len(sides) > 1:
            pair = (sides[0], sides[1])
            comparison = against.run(pair, inputs, program, device, options.request(), console.say)
            page: dict[Path | None, Callable[[], bytes]] = {
                options.html: functools.partial(pages.comparison_page, comparison)
            }
            return write_reports(
                Result(against.render_text(comparison), comparison.document()), options.json_path, page
            )
        profile = profiling.run(sides[0], inputs, program, device, options.request(), console.say)
        profile_page = pages.profile_page(profile)
        files: dict[Path | None, Callable[[], bytes]] = {
            options.html: lambda: profile_page.html().encode(),
            options.trace: profile.trace,
        }
        return write_reports(
            Result(pages.profile_page(profile).printed(), profile.document()), options.json_path, files
        )


@contextlib.contextmanager
def _open_local(name: str | None) -> Iterator[tuple[str | None, Bundle | None]]:
    """Open a package or a bundle on this machine; yield None in its place if the name is a release of the device."""
    from toolchain import bundle as bundles
    from toolchain.pipeline.source import is_built

    if name and (is_built(name) or "/" in name or Path(name).exists()):
        with bundles.at_hand(Path(name)) as bundle:
            yield name, bundle
    else:
        yield name, None


def _resolve_side(name: str, bundle: Bundle | None, board: Board, device: ConnectedDevice) -> Side:
    from toolchain.bundle import check_board
    from toolchain.pipeline import sides

    side = sides.Side.of(bundle) if bundle else sides.on_device(name, device.store)
    check_board(side.manifest, board, root="" if bundle else device.store.root)
    return side
