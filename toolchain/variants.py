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
        arrays: Arrays by the names of inputs.
        where: What the arrays are from, for the error.

    Raises:
        InputError: There is none.
    """
    for name, specs in signatures.items():
        if all(spec.name in arrays and arrays[spec.name].shape == spec.shape for spec in specs):
            return name
    shapes = [f"{name} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in arrays.items()]
    available = [f"variant {name}: {', '.join(map(str, specs))}" for name, specs in signatures.items()]
    raise InputError(
        f"no variant takes the shapes of {where}",
        details="\n".join([f"given: {', '.join(shapes)}", *available]),
        hint="use arrays of these shapes, or build the model with another variant",
    )
