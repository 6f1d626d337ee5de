"""The inputs of many runs, which need not lie in memory all at once: arrays, pictures, or seeded random tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from toolchain.errors import InputError, reason
from toolchain.models import inputs
from toolchain.tensors import TensorSpec, check_signature


@dataclass(frozen=True)
class Series:
    """Samples of a model's inputs.

    Attributes:
        count: How many there are.
        take: Returns some of them: by name, each input with an axis of samples in front.
        names: What each is called; empty where they have no names.
        single: Whether it is one sample that was given without such an axis, so that its outputs have none either.
    """

    count: int
    take: Callable[[range], dict[str, NDArray[Any]]]
    names: tuple[str, ...] = ()
    single: bool = False


def of_file(path: Path, specs: Sequence[TensorSpec]) -> Series:
    """Read an .npz or .npy file: each array has the shape of its input, or one more axis in front, of N samples.

    Raises:
        InputError: The file cannot be read, or does not fit the model's signature.
    """
    found = inputs.arrays(path, specs)
    if not check_signature(found, specs):
        return Series(1, lambda _: {name: value[None] for name, value in found.items()}, single=True)
    count = _count(found, specs)
    faults = check_signature(found, [spec.stacked(count) for spec in specs] if count else specs)
    if faults:
        more = [] if count else ["each array may have one more axis in front, of N samples"]
        raise InputError(f"the arrays of {path.name} do not fit the model", details="\n".join([*faults, *more]))
    return Series(count, lambda part: {name: value[part.start : part.stop] for name, value in found.items()})


def _count(found: dict[str, NDArray[Any]], specs: Sequence[TensorSpec]) -> int:
    """Return how many samples the first array with one more axis has; 0 if there is none."""
    stacked = (found[spec.name] for spec in specs if spec.name in found and _has_more(found[spec.name], spec))
    return next((value.shape[0] for value in stacked), 0)


def _has_more(value: NDArray[Any], spec: TensorSpec) -> bool:
    return value.ndim == len(spec.shape) + 1


def of_pictures(paths: Sequence[Path], specs: Sequence[TensorSpec]) -> Series:
    """Read pictures as `inputs.from_image` does, one sample each.

    Args:
        paths: Pictures, and folders, of which every picture is taken in the order of their names.
        specs: The model's inputs.

    Raises:
        InputError: There is none, one of them is none, or the model does not take one image.
    """
    found = [picture for path in paths for picture in _pictures(path)]
    for one in found:
        _check_picture(one)
    inputs.from_image(found[0], specs)  # the model takes pictures, or it is said now

    def take(part: range) -> dict[str, NDArray[Any]]:
        return _stacked(inputs.from_image(found[at], specs) for at in part)

    return Series(len(found), take, tuple(map(str, found)), single=len(paths) == 1 and not paths[0].is_dir())


def _pictures(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    known = Image.registered_extensions()
    found = sorted(one for one in path.iterdir() if one.suffix.lower() in known and one.is_file())
    if not found:
        raise InputError(f"there are no images in {path}", hint="pass a folder with files such as NAME.jpg or NAME.png")
    return found


def _check_picture(path: Path) -> None:
    """Read the head of a picture: of a thousand, one that is none should not be found in the middle of the work."""
    try:
        Image.open(path).close()
    except Exception as fault:  # its decoders raise whatever they trip over, of any class
        raise InputError(f"cannot read the image {path}", details=reason(fault)) from fault


def random(specs: Sequence[TensorSpec], seed: int, count: int) -> Series:
    """Draw samples as `inputs.random` does; the seed of each is one more than that of the one before."""
    return Series(count, lambda part: _stacked(inputs.random(specs, seed + at) for at in part))


def _stacked(samples: Iterable[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    drawn = list(samples)
    return {name: np.stack([one[name] for one in drawn]) for name in drawn[0]}
