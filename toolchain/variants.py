"""The names of a model's variants, and which one takes given arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolchain.errors import InputError
from toolchain.tensors import Tensors, TensorSpec

MOST = 64
"""Variants that one bundle may have: each is compiled, and has a part of the manifest."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def select(signatures: Mapping[str, Sequence[TensorSpec]], arrays: Tensors, where: str) -> str:
    """Return the name of the variant whose inputs have the shapes of these arrays.

    Args:
        signatures: The inputs of each variant.
        arrays: Arrays by the names of inputs; they may have one more axis in front, of samples.
        where: What the arrays are from, for the error.

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
        f"no variant takes the shapes of {where}",
        details="\n".join([f"given: {given}", *available]),
        hint="use arrays of these shapes, or build the model with another variant",
    )
