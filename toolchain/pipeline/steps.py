"""The steps of a model for pictures or sounds: they are found and checked, and make its inputs on this machine too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import pictures, sounds, steps, texts
from toolchain.bundle.manifest import Manifest
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.models.inputs import Convert
from toolchain.models.request import Model
from toolchain.native import pictures as native_pictures
from toolchain.native import sounds as native_sounds
from toolchain.native.pictures import Raw
from toolchain.native.sounds import Recording
from toolchain.pictures import Pictures
from toolchain.progress import Progress
from toolchain.sounds import Sounds
from toolchain.states import LARGEST_STEPS, STEPS, StatePair
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec
from toolchain.texts import Texts

_WAV = b"RIFF"  # how its files begin
_MOST_DRAWN = 1 << 20  # samples of a drawn sound


def steps_of(model: Model) -> Steps | None:
    """Return the steps of a model: those of the request, or of a pipeline.toml beside its file.

    Raises:
        InputError: The file is wrong.
    """
    if model.pipeline:
        return model.pipeline
    file = steps.beside(model.source)
    return steps.read_file(file) if file else None


def resolve(
    written: Steps,
    specs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec] | None = None,
    states: Sequence[StatePair] = (),
) -> Pictures | Sounds | Texts | None:
    """Check the steps against a model; without its outputs, only those before it.

    None: the only step is for its outputs.

    Raises:
        InputError: A step is wrong, or does not fit the model.
    """
    if written.is_text:
        _ = written.after
        return texts.resolve(written, outputs, states) if outputs is not None else None
    if written.is_sound:
        return sounds.resolve(written, specs, outputs, states)
    if states:
        raise InputError(
            "a model with a state takes no steps for pictures",
            details="state: " + ", ".join(map(str, states)),
            hint="leave out --state, or the steps; steps for sounds begin with wav",
        )
    return pictures.resolve(written, specs, outputs)


def converter(
    pipeline: Pictures | Sounds | Texts | None,
    specs: Sequence[TensorSpec],
    progress: Progress | None = None,
    *,
    is_sequence: bool = False,
) -> Convert | None:
    """Return what makes inputs of pictures or sounds here; None without steps.

    Args:
        pipeline: The steps.
        specs: The model's inputs without its state.
        progress: Called when the library of steps has to be compiled.
        is_sequence: Whether the windows of a sound are the steps of a model with a state, along an axis in front.
    """
    if pipeline is None or isinstance(pipeline, Texts):
        return None
    if isinstance(pipeline, Sounds):
        return _of_sound(pipeline, specs, progress, is_sequence=is_sequence)
    return _of_picture(pipeline, progress)


def _of_picture(pipeline: Pictures, progress: Progress | None) -> Convert:
    computer = native_pictures.Computer(pipeline.plan, progress)

    def convert(contents: NDArray[np.uint8]) -> NDArray[Any]:
        if contents[:4].tobytes() == _WAV:
            raise InputError("the model's steps are for pictures", hint="pass pictures, or build it with other steps")
        return computer.prepare(Raw.of_rgb(native_pictures.pixels_of(contents)))

    return convert


def _of_sound(
    pipeline: Sounds, specs: Sequence[TensorSpec], progress: Progress | None, *, is_sequence: bool
) -> Convert:
    computer, shape = native_sounds.Computer(pipeline.plan, progress), specs[0].shape

    def convert(contents: NDArray[np.uint8]) -> NDArray[Any]:
        if native_pictures.format_of(contents):
            raise InputError("the model's steps are for sounds", hint="pass sounds, or build it with other steps")
        sound = Recording(contents)
        if not is_sequence:
            return computer.prepare(sound, shape=shape)
        most = min(LARGEST_STEPS, inputs.available_bytes() // 4 // specs[0].bytes)
        if (windows := computer.windows(sound)) > most:
            raise InputError(
                f"the sound has {windows} windows, and at most {most} are possible here",
                hint="pass a shorter sound; `run --sound` and the library take longer ones",
            )
        return computer.prepare_all(sound, shape)

    return convert


def of_model(written: Steps | None, specs: Sequence[TensorSpec]) -> Convert | None:
    """Return the same for a model that is not built yet.

    Raises:
        InputError: Its steps are wrong, or do not fit its inputs.
    """
    return converter(resolve(written, specs), specs) if written else None


def make_inputs(source: inputs.Source, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Make the inputs of a release, those of all steps if it has a state; its own steps prepare an image or a sound."""
    if source.image or source.sound:
        convert = converter(manifest.pipeline, manifest.step_inputs, is_sequence=bool(manifest.states))
        source = replace(source, convert=convert)
    return inputs.make(source, manifest.step_inputs, is_sequence=bool(manifest.states))


def reference_raw(
    source: inputs.Source, pipeline: Pictures | Sounds, *, is_sequence: bool = False
) -> NDArray[np.uint8]:
    """Return what devices check the steps with: the file of the user, or its pixels, or a drawn picture or sound.

    A sound has one window, or those of a sequence.
    """
    path = source.image if isinstance(pipeline, Pictures) else source.sound
    try:
        if isinstance(pipeline, Pictures):
            raw = inputs.read_contents(path) if path else native_pictures.synthetic(pipeline.plan, source.seed)
            pixels = native_pictures.pixels_of(raw)
            raw = raw if native_pictures.format_of(raw) else pixels  # devices decode JPEG and PNG alone
            native_pictures.Computer(pipeline.plan).prepare(Raw.of_rgb(pixels))
        else:
            windows = max(2, min(STEPS, _MOST_DRAWN // pipeline.plan.samples)) if is_sequence else 1
            raw = inputs.read_contents(path) if path else native_sounds.synthetic(pipeline.plan, source.seed, windows)
            native_sounds.Computer(pipeline.plan).prepare(Recording(raw), 0 if is_sequence else None)
    except InputError as fault:
        where = path.name if path else "what is drawn"
        raise InputError(f"{where}: {fault.message}", details=fault.details, hint=fault.hint) from fault
    return raw
