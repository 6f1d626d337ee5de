"""The options of `deploy` for a float model that becomes int8 on the way, by the code of `quantize`."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from toolchain.cli import common, helptext, values
from toolchain.cli.console import Console
from toolchain.cli.gathering import option, same
from toolchain.cli.quantize import AccuracyOptions, QuantizeOptions, check_target, open_conversion
from toolchain.cli.samples import SampleOptions
from toolchain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolchain.board import Board
    from toolchain.models.request import Model

_WITH_LABELS = {"top1", "top5"}


class _Accuracy(AccuracyOptions):
    budget_name: ClassVar[str] = "--accuracy-budget"
    remedy: ClassVar[str] = "leave it out: the accelerator of this board can only shift"


@dataclass(frozen=True)
class Int8Options:
    """A folder of samples, and how much int8 may lose."""

    folder: Path | None = option(
        "--int8",
        type=common.PATH,
        metavar="FOLDER",
        subject=helptext.QUANTIZATION,
        help="Quantize the model to int8 first, with the pictures, .npz or .npy files of FOLDER, as `quantize` does; "
        "writes MODEL-int8.onnx.",
    )
    most_lost: float | None = option(
        "--accuracy-budget",
        metavar="POINTS",
        type=values.Limit(min=0.0),
        subject=helptext.ACCURACY,
        help="With --int8: keep layers float until int8 loses at most POINTS of the metric, in its unit.",
    )
    least_snr_db: float | None = same(AccuracyOptions, "least_snr_db")
    data: Path | None = same(SampleOptions, "data")
    metric: str | None = same(SampleOptions, "metric")
    preprocess: str = same(SampleOptions, "preprocess")
    limit: int | None = same(SampleOptions, "limit")
    postprocess: str = same(SampleOptions, "postprocess")
    pictures: Path | None = same(SampleOptions, "pictures")

    def check(self, source: str) -> None:
        """Refuse options that have no effect.

        Raises:
            InputError: One has none.
        """
        from toolchain.pipeline.source import is_built

        if self.folder and is_built(source):
            raise InputError(
                "--int8 quantizes a model, but this one is already built",
                hint="pass the model, or leave --int8 out",
            )
        if not self.folder and (names := self._accuracy(None).names):
            raise InputError(f"{names[0]} needs --int8", hint="add --int8 FOLDER, a folder of samples")

    def _accuracy(self, labels: Path | None) -> AccuracyOptions:
        labels = labels if self.metric in _WITH_LABELS else None
        samples = SampleOptions(
            self.data, self.metric, labels, self.preprocess, self.limit, self.postprocess, self.pictures
        )
        return _Accuracy(self.most_lost, self.least_snr_db, samples)

    def open(
        self, console: Console, floats: Model, board: Board, model: common.ModelOptions, labels: Path | None
    ) -> OpenedConversion | None:
        """Check all that can be checked before the work; None without --int8.

        Args:
            console: Shows the progress.
            floats: The float model.
            board: Its backend decides on the scales.
            model: How the model is imported.
            labels: The names of the classes, which the metric takes as well.

        Raises:
            InputError: The samples, the data or the metric do not fit the model, or the file cannot be written.
        """
        if not self.folder:
            return None
        from toolchain.models import source as models
        from toolchain.pipeline import steps

        options = QuantizeOptions(
            processor=board.backend, calibration=str(self.folder), accuracy=self._accuracy(labels), model=model
        )
        options.check()
        loaded = models.load_request(floats)
        written = steps.steps_of(floats)
        models.check_memory(loaded)
        path = Path(f"{loaded.name}-int8.onnx")
        check_target(Path(floats.source), path)
        # The steps may be in a file beside the float model.
        converted = dataclasses.replace(floats, source=str(path), shapes={}, dims={}, fixed={}, pipeline=written)
        return OpenedConversion(path, converted, open_conversion(console, loaded, options, written))


@dataclass(frozen=True)
class OpenedConversion:
    """A float model that can be converted to int8, and the file that it goes to."""

    path: Path
    model: Model  # how the file is imported: its shapes are set
    convert: Callable[[], Any]

    def write(self) -> dict[str, Any]:
        """Convert the model and write the file; return the result as `quantize --json` has it."""
        from toolchain import files

        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(files.atomic_path(self.path))
            result = self.convert()
            stream.write_bytes(result.source.proto.SerializeToString(deterministic=True))
        return dict(result.document() | {"file": str(self.path)})

    def options(self, floats: common.ModelOptions) -> common.ModelOptions:
        """Return the options by which the file is imported."""
        return dataclasses.replace(floats, shapes=(), dims=(), fixed=())
