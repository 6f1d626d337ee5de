"""The names of a model's variants, and which one takes given arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolchain.errors import InputError
from toolchain.tensors import Tensors, TensorSpec

MOST = 64
"""Variants that one bundle may have: each is compiled, and has a part of the manifest."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
LARGEST_SIZE = 2**28
"""The greatest size of a dynamic dimension."""
LONGEST_DIMENSION = 54
"""Letters of a dynamic dimension's name, so that it and a size are a variant's name."""


@dataclass(frozen=True)
class Dynamic:
    """A dimension that has any size between two: those of the first and of the last variant.

    Attributes:
        dimension: Its name; that of a size's variant has a `-` and the size behind it.
        least: The least size, 1 or more.
        greatest: The greatest size.
    """

    dimension: str
    least: int
    greatest: int

    def __str__(self) -> str:
        return f"every {self.dimension} from {self.least} to {self.greatest}"

    def variant(self, size: int) -> str:
        """Return the name of a size's variant."""
        return f"{self.dimension}-{size}"

    def size(self, variant: str) -> int | None:
        """Return the size that a variant's name stands for; None if it does not, or is out of bounds."""
        match = re.fullmatch(rf"{re.escape(self.dimension)}-([1-9][0-9]{{0,8}})", variant)
        return int(match[1]) if match and self.least <= int(match[1]) <= self.greatest else None

    def is_proportional(self, least: TensorSpec, greatest: TensorSpec) -> bool:
        """Whether each extent of a tensor may be a whole multiple of the size and an offset."""
        range_ = self.greatest - self.least
        return len(least.shape) == len(greatest.shape) and not any(
            (high - low) % range_ for low, high in zip(least.shape, greatest.shape, strict=True)
        )

    def resize(self, least: TensorSpec, greatest: TensorSpec, size: int) -> TensorSpec:
        """Return a tensor of some size, from those of the least and of the greatest one."""
        share, range_ = size - self.least, self.greatest - self.least
        pairs = zip(least.shape, greatest.shape, strict=True)
        return replace(greatest, shape=tuple(low + (high - low) * share // range_ for low, high in pairs))

    def select(self, least: Sequence[TensorSpec], greatest: Sequence[TensorSpec], arrays: Tensors, where: str) -> str:
        """Return the name of the variant whose inputs have the shapes of arrays, as the function `select`."""
        for low, high in zip(least, greatest, strict=True):
            shape = arrays[low.name].shape if low.name in arrays else ()
            sizes = shape[max(0, len(shape) - len(low.shape)) :]
            for axis, size in enumerate(sizes):
                if low.shape[axis] < high.shape[axis] and low.shape[axis] <= size <= high.shape[axis]:
                    share = (size - low.shape[axis]) * (self.greatest - self.least)
                    name = self.variant(self.least + share // (high.shape[axis] - low.shape[axis]))
                    specs = [self.resize(*pair, self.size(name) or 0) for pair in zip(least, greatest, strict=True)]
                    return select({name: specs}, arrays, where, str(self))
        return select({str(self): least}, arrays, where, str(self))


def select(signatures: Mapping[str, Sequence[TensorSpec]], arrays: Tensors, where: str, dynamic: str = "") -> str:
    """Return the name of the variant whose inputs have the shapes of these arrays.

    Args:
        signatures: The inputs of each variant.
        arrays: Arrays by the names of inputs; they may have one more axis in front, of samples.
        where: What the arrays are from, for the error.
        dynamic: The sizes that there are, if they are not only those.

    Raises:
        InputError: There is none.
    """
    for name, specs in signatures.items():
        shapes = [arrays[spec.name].shape for spec in specs if spec.name in arrays]
        if len(shapes) == len(specs) and all(
            spec.shape in {shape, shape[1:]} for shape, spec in zip(shapes, specs, strict=True)
        ):
            return name
    given = ", ".join(f"{name} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in arrays.items())
    available = [f"variant {name}: {', '.join(map(str, specs))}" for name, specs in signatures.items()]
    raise InputError(
        f"no {'size' if dynamic else 'variant'} takes the shapes of {where}",
        details="\n".join([f"given: {given}", *([dynamic] if dynamic else available)]),
        hint="use arrays of these shapes, or build the model with "
        + ("a greater range" if dynamic else "another variant"),
    )
