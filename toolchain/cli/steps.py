"""The options for the steps of pictures and sounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.cli.gathering import option

if TYPE_CHECKING:
    from toolchain.models.request import Model


@dataclass(frozen=True)
class StepOptions:
    """The steps from a picture or a sound to the model's input, and from its output to classes, boxes or text."""

    pre: tuple[str, ...] = option(
        "--pre",
        multiple=True,
        metavar="STEP",
        help="Step from raw pictures or sounds to the input, such as resize:letterbox=640 or wav:rate=16000.",
    )
    post: tuple[str, ...] = option(
        "--post",
        multiple=True,
        metavar="STEP",
        help="Step from the output to objects or text, such as topk=5, yolo:nms=0.45 or ctc:labels=FILE.",
    )

    def add_to(self, model: Model) -> Model:
        """Return a model with these steps; without any, those of a pipeline.toml beside it apply.

        Raises:
            InputError: A step is wrong.
        """
        from toolchain.steps import Steps

        return replace(model, pipeline=Steps.read(self.pre, self.post, Path()))
