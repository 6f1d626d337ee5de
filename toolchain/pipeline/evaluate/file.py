"""The file of `deploy --evaluate`: samples, a metric, and what a release may lose before it becomes current."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain.devices import read_table
from toolchain.errors import InputError
from toolchain.pipeline.evaluate.scoring import SampleRequest
from toolchain.pipeline.evaluate.session import ModelFiles
from toolchain.validation import CONFIG, validate


@checked_dataclass(frozen=True, config=CONFIG)
class _Table:
    """The keys of the file; paths are relative to its folder."""

    data: Path
    metric: str
    most_lost: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    labels: Path | None = None
    preprocess: str = ""
    limit: Annotated[int, Field(ge=1)] | None = None
    model: Path | None = None
    compiled: Path | None = None
    postprocess: str = ""
    pictures: Path | None = None


@dataclass(frozen=True)
class Requirement:
    """What a release must keep on the user's samples; `most_lost` is in the unit of the metric."""

    samples: SampleRequest
    files: ModelFiles
    most_lost: float

    def of_model(self, model: ModelFiles) -> Requirement:
        """Compare with the model that is deployed, unless the file names the float model."""
        return self if self.files.model else replace(self, files=replace(model, compiled=self.files.compiled))


def read(path: Path) -> Requirement:
    """Read the file.

    Raises:
        InputError: It cannot be read, or a key is wrong.
    """
    hint = "docs/evaluate.md describes the file and its keys"
    if not path.is_file():
        raise InputError(f"there is no file {path}", hint=hint)
    table, faults = validate(_Table, read_table(path), "file of --evaluate")
    if faults:
        raise InputError(f"{path} is not right", details="\n".join(map(str, faults)), hint=hint)
    folder = path.parent
    labels, pictures = (folder / name if name else None for name in (table.labels, table.pictures))
    model, compiled = (str(folder / name) if name else "" for name in (table.model, table.compiled))
    samples = SampleRequest(
        folder / table.data, table.metric, labels, table.preprocess, table.limit, table.postprocess, pictures
    )
    return Requirement(samples, ModelFiles(model, compiled), table.most_lost)
