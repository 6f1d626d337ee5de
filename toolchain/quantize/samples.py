"""Calibration samples: the files of a folder, read one at a time as they are wanted, or random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np

from toolchain.errors import InputError, reason
from toolchain.models import inputs
from toolchain.tensors import Tensors, TensorSpec, check_signature

_PICTURES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
_SOUNDS = frozenset({".wav"})
_ARRAYS = frozenset({".npz", ".npy"})


class Folder(Sequence[Tensors]):
    """The samples of a folder and those below it, in the order of their paths.

    Args:
        root: The folder; each .npz, .npy, .wav and picture in it is one sample.
        specs: Signature of the model's inputs.
        limit: How many to take, evenly spread over all of them; None: every one.

    Raises:
        InputError: There is no such folder, or no sample in it.
    """

    def __init__(
        self, root: Path, specs: Sequence[TensorSpec], limit: int | None = None, convert: inputs.Convert | None = None
    ) -> None:
        if not root.is_dir():
            raise InputError(f"there is no folder {str(root)!r}", hint="--calibration takes a folder, or `random`")
        paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in _PICTURES | _SOUNDS | _ARRAYS)
        if not paths:
            raise InputError(
                f"there are no samples in {root}", hint="add images, .wav, .npz or .npy files; each file is one sample"
            )
        count = min(limit or len(paths), len(paths))
        self.paths = tuple(paths[number * len(paths) // count] for number in range(count))
        self._specs = tuple(specs)
        self._convert = convert

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Tensors: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensors]: ...

    def __getitem__(self, index: int | slice) -> Tensors | Sequence[Tensors]:
        if isinstance(index, slice):
            return [read(path, self._specs, self._convert) for path in self.paths[index]]
        return read(self.paths[index], self._specs, self._convert)


class Selection(Sequence[Tensors]):
    """Some of the samples, which are read when they are wanted."""

    def __init__(self, samples: Sequence[Tensors], numbers: Sequence[int]) -> None:
        self._samples, self._numbers = samples, tuple(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Tensors: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensors]: ...

    def __getitem__(self, index: int | slice) -> Tensors | Sequence[Tensors]:
        if isinstance(index, slice):
            return Selection(self._samples, self._numbers[index])
        return self._samples[self._numbers[index]]


def read(path: Path, specs: Sequence[TensorSpec], convert: inputs.Convert | None = None) -> Tensors:
    """Read one sample.

    Raises:
        InputError: It cannot be read, or does not fit the model; the file is named.
    """
    ending = path.suffix.lower()
    if ending == ".npz":
        return inputs.from_npz(path, specs)
    if ending in _SOUNDS:
        return inputs.from_sound(path, specs, convert)
    return _from_npy(path, specs) if ending == ".npy" else inputs.from_image(path, specs, convert)


def _from_npy(path: Path, specs: Sequence[TensorSpec]) -> Tensors:
    if len(specs) != 1:
        raise InputError(
            f"{path} contains one array, but the model has {len(specs)} inputs",
            hint="write .npz files with the names of the inputs",
        )
    try:
        with path.open("rb") as stream:
            array = np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except (OSError, ValueError, EOFError) as fault:
        raise InputError(f"cannot read {path}", details=reason(fault), hint="write it with numpy.save") from fault
    tensors = {specs[0].name: array}
    faults = check_signature(tensors, specs)
    if faults:
        raise InputError(f"the array of {path} does not fit the model", details="\n".join(faults))
    return tensors


def random(specs: Sequence[TensorSpec], count: int, seed: int = 0) -> list[Tensors]:
    """Draw samples, as `toolchain build` does without inputs; each has a seed of its own."""
    return [inputs.random(specs, seed + number) for number in range(count)]
