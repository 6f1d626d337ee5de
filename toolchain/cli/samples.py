"""The options for a metric on samples of the user's own, beside a limit for what may be lost of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, helptext
from toolchain.cli.gathering import option
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.pipeline.evaluate import SampleRequest

DATA = "a folder with a folder for each class, a .csv file of files and labels, a COCO file of boxes, or .npz files"
METRICS = "top1, top5, miou, map, map-masks, map-keypoints, wer, cosine, mse, or module:function of your own project"


@dataclass(frozen=True)
class SampleOptions:
    """A metric and its samples; `evaluate` requires both."""

    data: Path | None = option(
        "--data",
        type=common.PATH,
        subject=helptext.ACCURACY,
        help=f"Samples for the metric: {DATA}.",
    )
    metric: str | None = option(
        "--metric", metavar="METRIC", subject=helptext.ACCURACY, help=f"What is compared: {METRICS}."
    )
    labels: Path | None = option(
        "--labels", type=common.PATH, help="File of class names, one on each line, in the order of the outputs."
    )
    preprocess: str = option(
        "--preprocess",
        default="",
        metavar="MODULE:FUNCTION",
        help="Function of your project that reads a sample's file. Default: pictures and sounds as `run` does.",
    )
    limit: int | None = option(
        "--limit", type=click.IntRange(min=1), help="Use N samples, spread evenly over the data. Default: all."
    )

    postprocess: str = option(
        "--postprocess",
        default="",
        metavar="MODULE:FUNCTION",
        help="Function of your project that makes boxes, masks (map) or a text (wer) of the outputs. Default: the"
        " release's steps.",
    )
    pictures: Path | None = option(
        "--pictures",
        type=common.PATH,
        metavar="FOLDER",
        help="Folder of the pictures of a COCO file. Default: the file's own.",
    )

    @property
    def names(self) -> list[str]:
        """Names of the options that are set."""
        options = {
            "--data": self.data,
            "--metric": self.metric,
            "--labels": self.labels,
            "--preprocess": self.preprocess,
            "--limit": self.limit,
            "--postprocess": self.postprocess,
            "--pictures": self.pictures,
        }
        return [name for name, value in options.items() if value]

    def request(self) -> SampleRequest | None:
        """Return the samples with their metric; None if no option is set.

        Raises:
            InputError: Only some of them are.
        """
        from toolchain.pipeline.evaluate import SampleRequest

        if self.data and self.metric:
            return SampleRequest(
                self.data,
                self.metric,
                self.labels,
                self.preprocess,
                self.limit,
                self.postprocess,
                self.pictures,
            )
        if self.names:
            missing = "--data" if self.metric else "--metric"
            raise InputError(f"{self.names[0]} needs {missing}", hint="for example: --metric top1 --data FOLDER")
        return None
