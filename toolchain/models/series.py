"""The inputs of many runs, which need not all be in memory at once: arrays, pictures, sounds, or random tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from toolchain.errors import InputError, reason
from toolchain.models import inputs
from toolchain.models.inputs import Convert
from toolchain.tensors import TensorSpec, check_signature


@dataclass(frozen=True)
class Series:
    """Samples of a model's inputs.

    Attributes:
        take: Returns some samples: by name, each input with a leading axis of samples.
        names: One for each sample; empty if they have none.
        single: Whether it is one sample without that axis, so that its outputs have none either.
        raw_bytes: Largest size of a raw picture or sound; `take` then returns those with the names 0, 1 and so on. 0
            for inputs of the model.
        windows: Most windows of a sound.
    """

    count: int
    take: Callable[[range], dict[str, NDArray[Any]]]
    names: tuple[str, ...] = ()
    single: bool = False
    raw_bytes: int = 0
    windows: int = 1


def of_file(path: Path, specs: Sequence[TensorSpec]) -> Series:
    """Read an .npz or .npy file: each array has the shape of its input, or a leading axis of N samples."""
    arrays = inputs.arrays(path, specs)
    if not check_signature(arrays, specs):
        return Series(1, lambda _: {name: value[None] for name, value in arrays.items()}, single=True)
    pairs = [(arrays[spec.name], spec) for spec in specs if spec.name in arrays]
    count = next((array.shape[0] for array, spec in pairs if array.ndim == len(spec.shape) + 1), 0)
    faults = check_signature(arrays, [spec.stacked(count) for spec in specs] if count else specs)
    if faults:
        more = [] if count else ["each array may have one more axis in front, of N samples"]
        raise InputError(f"the arrays of {path.name} do not fit the model", details="\n".join([*faults, *more]))
    return Series(count, lambda samples: {name: value[samples.start : samples.stop] for name, value in arrays.items()})


def of_pictures(paths: Sequence[Path], specs: Sequence[TensorSpec]) -> Series:
    """Read pictures as `inputs.from_image` does, one sample each; folders in the order of their files' names."""
    pictures, _ = _listed(paths)
    inputs.from_image(pictures[0], specs)  # raises now if the model does not take pictures

    def take(samples: range) -> dict[str, NDArray[Any]]:
        return _stacked(inputs.from_image(pictures[index], specs) for index in samples)

    return Series(len(pictures), take, tuple(map(str, pictures)), single=_is_one_file(paths))


def of_raw_pictures(paths: Sequence[Path], decode: Convert) -> Series:
    """Decode pictures to RGB pixels, for a release whose own steps make inputs of them."""
    pictures, largest = _listed(paths)

    def take(samples: range) -> dict[str, NDArray[Any]]:
        return {str(number): inputs.of_file(pictures[index], decode) for number, index in enumerate(samples)}

    return Series(len(pictures), take, tuple(map(str, pictures)), _is_one_file(paths), raw_bytes=largest)


def of_raw_sounds(paths: Sequence[Path], windows: Callable[[NDArray[np.uint8]], int]) -> Series:
    """Read sounds as the bytes of WAV files, for a release whose own steps make inputs of them.

    `windows` returns how many windows a sound has, and refuses one that does not fit the release.
    """
    sounds = _files(paths, {".wav"}, "sounds", "NAME.wav")
    largest, most = 0, 1
    for sound in sounds:  # all of them first: a damaged one among a thousand stops the run before it begins
        contents = inputs.read_contents(sound)
        try:
            most = max(most, windows(contents))
        except InputError as fault:
            raise InputError(f"{sound}: {fault.message}", details=fault.details, hint=fault.hint) from fault
        largest = max(largest, contents.size)

    def take(samples: range) -> dict[str, NDArray[Any]]:
        return {str(number): inputs.read_contents(sounds[index]) for number, index in enumerate(samples)}

    names = tuple(map(str, sounds))
    return Series(len(sounds), take, names, _is_one_file(paths), raw_bytes=largest, windows=most)


def _is_one_file(paths: Sequence[Path]) -> bool:
    return len(paths) == 1 and not paths[0].is_dir()


def _listed(paths: Sequence[Path]) -> tuple[list[Path], int]:
    """Return the files of pictures, and the bytes of the largest one as RGB pixels."""
    pictures = _files(paths, Image.registered_extensions(), "images", "NAME.jpg or NAME.png")
    # All headers are read first, so that a damaged file among a thousand stops the run before it begins.
    largest = 0
    for picture in pictures:
        try:
            with Image.open(picture) as image:
                largest = max(largest, 3 * image.width * image.height)
        except Exception as fault:  # its decoders raise whatever they trip over, of any class
            raise InputError(f"cannot read the image {picture}", details=reason(fault)) from fault
    return pictures, largest


def _files(paths: Sequence[Path], suffixes: Collection[str], what: str, example: str) -> list[Path]:
    """Return files, and those of folders that have such a suffix."""
    listed: list[Path] = []
    for path in paths:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        files = [file for file in files if file == path or (file.suffix.lower() in suffixes and file.is_file())]
        if not files:
            raise InputError(f"there are no {what} in {path}", hint=f"pass a folder with files such as {example}")
        listed += files
    return listed


def random(specs: Sequence[TensorSpec], seed: int, count: int) -> Series:
    """Draw samples as `inputs.random` does; each seed is one more than the one before."""
    return Series(count, lambda samples: _stacked(inputs.random(specs, seed + index) for index in samples))


def _stacked(samples: Iterable[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    rows = list(samples)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
