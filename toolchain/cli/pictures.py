"""The options for the steps of pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.cli.gathering import option

if TYPE_CHECKING:
    from toolchain.models.request import Model


@dataclass(frozen=True)
class PictureOptions:
    """The steps from a picture to the model's input, and from its output to classes or boxes."""

    pre: tuple[str, ...] = option(
        "--pre",
        multiple=True,
        metavar="STEP",
        help="Step from raw pictures to the input, such as resize:letterbox=640,pad=114 or scale=1/255.",
    )
    post: tuple[str, ...] = option(
        "--post",
        multiple=True,
        metavar="STEP",
        help="Step from the output to objects, such as topk=5 or yolo:nms=0.45.",
    )

    def add_to(self, model: Model) -> Model:
        """Return a model with these steps; without any, those of a pipeline.toml beside it apply.

        Raises:
            InputError: A step is wrong.
        """
        from toolchain.steps import Steps

        return replace(model, pictures=Steps.read(self.pre, self.post, Path()))
