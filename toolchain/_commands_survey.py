"""The `survey` command: what only a real device can show, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import _commands_tuning, _options
from toolchain._commands import Console, Result

if TYPE_CHECKING:
    from toolchain.tuning.tune_report import TuneReport


@click.command("survey")
@click.argument("networks", nargs=-1)
@_options.device_options
@_options.toolchain_option
@click.option(
    "-o", "--output", type=_options.PATH, help="Folder for report.md and report.json; survey-BOARD by default."
)
@click.option(
    "--budget",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.0, 3600.0),
    help="Seconds to time each network.",
)
@click.option(
    "--trials", default=32, show_default=True, type=click.IntRange(min=1), help="Trials of each short tuning."
)
@_options.json_flag
@click.pass_obj
def survey_command(
    console: Console, /, networks: tuple[str, ...], output: Path | None, budget: float, *, as_json: bool, **options: Any
) -> Result:
    """Try everything on one device with a few NETWORKS, and write a report to send: it names no host and no person.

    A step that fails is recorded, and the next one follows; the exit code is that of the first failure.
    """
    from toolchain import survey  # noqa: PLC0415 - the help needs none of this

    kind = _options.chosen_board(options)
    settings = _commands_tuning.defaults() | options

    def tune(network: str, records: Path) -> TuneReport:
        found: TuneReport = _commands_tuning.tuned(console, network, settings | {"records": records})
        return found

    wanted = survey.Request(
        _commands_tuning.wanted_boards(kind, "survey", options),
        tune,
        networks or survey.NETWORKS,
        budget,
        options["toolchain"] or "",
    )
    folder = output or Path(f"survey-{kind.name}")
    found = survey.run(wanted, folder, console.say)
    text = f"{found.table()}\nwritten to {folder / 'report.md'} and {folder / 'report.json'}: no names, no addresses"
    return Result(text, found.document(), as_json, found.fault)
