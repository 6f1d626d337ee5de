"""Dimensions of inputs that a file leaves open: their names, and the sizes that a user sets by name.

A file names most open dimensions, and the same name in several inputs means the same size. A name such as
`past_length + 1` is a sum of other names and numbers.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping

import onnx

from toolchain.errors import InputError, did_you_mean

_LARGEST = 2**31 - 1
_PLUS = " + "
_EXAMPLE = 64  # the size that a hint shows


def is_name(text: str) -> bool:
    """Whether a dimension's name means that it has the same size as others of that name."""
    return bool(text) and text not in {"?", "-1", "None"}


def named_size(name: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size of a dimension by its name, or as a sum; None if it is open."""
    if not is_name(name) or name in sizes:
        return sizes.get(name)
    terms = [int(term) if term.isdecimal() else sizes.get(term) for term in name.split(_PLUS)]
    known = [term for term in terms if term is not None]
    return sum(known) if len(known) == len(terms) else None


def names(values: Iterable[onnx.ValueInfoProto]) -> dict[str, list[str]]:
    """Return the names of open dimensions, the terms of sums instead of sums, each with the inputs that have it."""
    owners: dict[str, list[str]] = {}
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            for name in dim.dim_param.split(_PLUS):
                if is_name(name) and not name.isdecimal() and value.name not in owners.setdefault(name, []):
                    owners[name].append(value.name)
    return owners


def check(sizes: Mapping[str, int], values: Collection[onnx.ValueInfoProto]) -> None:
    """Check sizes by the names of dimensions.

    Raises:
        InputError: No input has such a dimension, no dimension has such a size, or a sum has another one.
    """
    owners = names(values)
    sums = {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim if is_name(dim.dim_param)}
    for name, size in sizes.items():
        if name not in owners and name not in sums:
            listed = "; ".join(f"{dimension} ({', '.join(inputs)})" for dimension, inputs in owners.items())
            raise InputError(
                f"no input of the model has a dimension {name!r}",
                details=f"its open dimensions: {listed}" if listed else "none of its dimensions has a name",
                hint=did_you_mean(name, owners)
                or "set the dimensions of an input by position: --shape NAME:1,3,224,224",
            )
        if not 0 <= size <= _LARGEST:
            raise InputError(
                f"dimension {name} cannot have the size {size}", hint=f"use a whole number from 0 to {_LARGEST}"
            )
        total = named_size(name, {other: sizes[other] for other in sizes if other != name})
        if total not in {None, size}:
            raise InputError(f"dimension {name} is {total}, not {size}", hint=f"leave --dim '{name}={size}' out")


def check_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
    """Check that the shape of an input agrees with the sizes that were set by name; otherwise an InputError."""
    for axis, (dim, size) in enumerate(zip(value.type.tensor_type.shape.dim, shape, strict=False)):
        by_name = named_size(dim.dim_param, sizes)
        if by_name is not None and by_name != size:
            raise InputError(
                f"--dim and --shape disagree about dimension {dim.dim_param}: {by_name} and {size}",
                details=f"it is axis {axis} of input {value.name}",
                hint="leave one of them out",
            )


def set_by_name(value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> None:
    """Write the sizes that follow from names into the open dimensions of an input."""
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_param and (size := named_size(dim.dim_param, sizes)) is not None:
            dim.dim_value = size


def refuse_open(values: Collection[onnx.ValueInfoProto], declared: Mapping[str, str], sizes: Mapping[str, int]) -> None:
    """Refuse inputs whose dimensions are open.

    Args:
        values: All inputs of the model; an open dimension has no value.
        declared: The inputs as texts, as in the file.
        sizes: What is set by name.

    Raises:
        InputError: A dimension is open. The hint sets all of them: by name, and those without a name by position.
    """
    open_inputs = {value.name: value for value in values if has_open(value)}
    if not open_inputs:
        return
    owners = {name: inputs for name, inputs in names(open_inputs.values()).items() if name not in sizes}
    unnamed = [value for value in open_inputs.values() if _has_unnamed(value)]
    by_position = {name for value in unnamed for name in names([value])}
    options = [f"--dim {shlex.quote(f'{name}={_EXAMPLE}')}" for name in owners if name not in by_position]
    for value in unnamed:
        shape = ",".join(str(dim.dim_value or 1) for dim in value.type.tensor_type.shape.dim)
        options.append(f"--shape {shlex.quote(f'{value.name}:{shape}')}")
    listed = [f"dimension {name} of {', '.join(inputs)}" for name, inputs in owners.items()]
    listed += [f"dimensions without a name of {value.name}" for value in unnamed]
    hint = "set them, for example: " + " ".join(options)
    if len(open_inputs) == 1:
        (name,) = open_inputs
        raise InputError(f"input {name} has open dimensions: {declared[name]}", details="\n".join(listed), hint=hint)
    raise InputError(
        f"inputs {', '.join(open_inputs)} have open dimensions",
        details="\n".join([*(f"{name}: {declared[name]}" for name in open_inputs), *listed]),
        hint=hint,
    )


def has_open(value: onnx.ValueInfoProto) -> bool:
    """Whether a dimension of an input has no value."""
    return any(map(_is_open, value.type.tensor_type.shape.dim))


def _is_open(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return not dim.HasField("dim_value")


def _has_unnamed(value: onnx.ValueInfoProto) -> bool:
    return any(_is_open(dim) and not is_name(dim.dim_param) for dim in value.type.tensor_type.shape.dim)
