"""The release of a device is run on a user's own inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, helptext
from toolchain.cli.connection import DeviceOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same

if TYPE_CHECKING:
    from toolchain.pipeline.run import RunRequest


@dataclass(frozen=True)
class RunOptions:
    """The options of `run`."""

    device: DeviceOptions = record(DeviceOptions)
    npz: Path | None = option(
        "--input",
        type=common.PATH,
        help="Inputs: an .npz file with one array for each input, or an .npy file. Many samples need one more axis.",
    )
    pictures: tuple[Path, ...] = option(
        "--image",
        type=common.PATH,
        multiple=True,
        help="Picture to use as the input, or a folder of pictures; can be repeated.",
    )
    output: Path = option(
        "-o", "--output", type=common.PATH, required=True, help="Where to write the outputs, an .npz file."
    )
    labels: Path | None = same(common.InputOptions, "labels")
    threads: int | None = same(common.MeasureOptions, "threads")

    def request(self) -> RunRequest:
        """Return what is run, checked as far as that is possible without the device."""
        from toolchain.pipeline.run import RunRequest

        request = RunRequest(self.output, self.npz, self.pictures, self.labels, self.threads or 0)
        request.check()
        return request


@click.command("run", cls=helptext.Command)
@gather("options", RunOptions)
@common.json_flag
@click.pass_obj
def run(console: Console, /, options: RunOptions, *, as_json: bool) -> Result:
    """Run the deployed release on your own inputs.

    Its outputs are written to a file.
    """
    from toolchain.device.stages import Stages
    from toolchain.pipeline import preflight
    from toolchain.pipeline import run as running

    request, board = options.request(), options.device.board()
    with open_device(board, options.device, console.say) as device:
        preflight.before_bench(board, device)
        report = running.run(request, device, Stages(console.say))
    return Result(report.render_text(), report.document(), as_json)
