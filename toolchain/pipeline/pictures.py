"""Where a model has steps for pictures: they are found and checked, and make its inputs on this machine too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import pictures
from toolchain.bundle.manifest import Manifest
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.models.inputs import Convert
from toolchain.models.request import Model
from toolchain.native.pictures import Computer, Raw, synthetic
from toolchain.pictures import Pictures
from toolchain.progress import Progress
from toolchain.tensors import TensorSpec


def steps_of(model: Model) -> Steps | None:
    """Return the steps of a model: those of the request, or of a pipeline.toml beside its file.

    Raises:
        InputError: The file is wrong.
    """
    if model.pictures:
        return model.pictures
    file = pictures.beside(model.source)
    return pictures.read_file(file) if file else None


def converter(steps: Pictures | None, progress: Progress | None = None) -> Convert | None:
    """Return what makes inputs of pictures here; None without steps."""
    if steps is None:
        return None
    computer = Computer(steps.plan, progress)
    return lambda pixels: computer.prepare(Raw.of_rgb(pixels))


def of_model(model: Model, specs: Sequence[TensorSpec]) -> Convert | None:
    """Return the same for a model that is not built yet.

    Raises:
        InputError: Its steps are wrong, or do not fit its inputs.
    """
    steps = steps_of(model)
    return converter(pictures.resolve(steps, specs, None)) if steps else None


def make_inputs(source: inputs.Source, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Make the inputs of a release, those of all steps if it has a state; its own steps prepare an image."""
    if source.image and manifest.pictures:
        source = replace(source, convert=converter(manifest.pictures))
    return inputs.make(source, manifest.step_inputs, is_sequence=bool(manifest.states))


def reference_picture(source: inputs.Source, steps: Pictures) -> NDArray[np.uint8]:
    """Return the picture that devices check the steps with: the user's, or a drawn one."""
    pixels = inputs.read_rgb(source.image) if source.image else synthetic(steps.plan, source.seed)
    try:
        Computer(steps.plan).prepare(Raw.of_rgb(pixels))
    except InputError as fault:
        where = source.image.name if source.image else "the drawn picture"
        raise InputError(f"{where}: {fault.message}", details=fault.details, hint=fault.hint) from fault
    return pixels
