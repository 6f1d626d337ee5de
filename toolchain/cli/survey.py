"""The `survey` command: try everything that needs a real device, in one run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, completion, declare, tuning
from toolchain.cli.connection import DeviceOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.cli.reports import write_reports

if TYPE_CHECKING:
    from toolchain.tuning.report import TuneReport


@dataclass(frozen=True)
class SurveyOptions:
    """The options of `survey`."""

    device: DeviceOptions = record(DeviceOptions)
    toolchain: str | None = common.toolchain()
    output: Path | None = option(
        "-o",
        "--output",
        type=common.PATH,
        metavar="FOLDER",
        help="Folder for report.md and report.json. Default: survey-BOARD.",
    )
    budget: float = common.budget(10.0, "each network")
    trials: int = option(
        "--trials",
        default=32,
        show_default=True,
        type=click.IntRange(min=1),
        help="Number of trials of each short tuning.",
    )
    html_path: Path | None = common.html()


@declare.command(common.PAGES)
@click.argument("networks", nargs=-1, shell_complete=completion.models, callback=common.explain_name("model"))
@gather("options", SurveyOptions)
@declare.json_flag
@click.pass_obj
def survey(console: Console, /, networks: tuple[str, ...], options: SurveyOptions, *, as_json: bool) -> Result:
    """NETWORKS are predefined networks. The report can be sent to others: it names no host and no person. A step that
    fails is recorded, and the next step runs; the exit code is that of the first failure.
    """
    from toolchain.pipeline import preflight
    from toolchain.pipeline import survey as surveys
    from toolchain.pipeline.pages import surveyed

    board = options.device.board()
    search = common.SearchOptions(trials=options.trials)
    settings = tuning.TuneOptions(device=options.device, toolchain=options.toolchain, search=search)

    def tune(network: str, records: Path) -> TuneReport:
        return tuning.run_tune(console, network, dataclasses.replace(settings, records=records), passing=True)

    request = surveys.SurveyRequest(
        options.device.board_request(board, "survey"),
        tune,
        networks or surveys.NETWORKS,
        options.budget,
        options.toolchain or "",
    )
    # Checked first: a cause that makes every step fail, such as an unreachable device, ends the survey at once.
    options.device.device(board)
    jobs = [surveys.bundle_source(request, network, console.say) for network in request.networks]
    preflight.before_survey(jobs, lambda: open_device(board, options.device))
    folder = options.output or Path(f"survey-{board.name}")
    outcome = surveys.run(request, folder, console.say)
    files = f"{folder / 'report.md'} and {folder / 'report.json'}"
    text = f"{outcome.table()}\nwritten to {files}, without names and addresses"
    result = Result(text, outcome.document(), as_json, outcome.fault)
    return write_reports(result, None, {options.html_path: lambda: surveyed.html(outcome).encode()})
