"""The inputs of a model: which ones, of which shapes and element types.

A library is compiled for fixed shapes. Those that a file leaves open come from the user; a batch that stays open is 1.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.errors import InputError
from toolchain.models import dimensions, protos
from toolchain.tensors import DTYPES, TensorSpec

# What exporters call a batch, or a dimension of which they know nothing: as the first of several, it is a batch.
_BATCH = re.compile(r"|\?|n|b|bs|none|-1|.*batch.*|unk_.*|.*dynamic.*|.*dim_?0|s\d+", re.IGNORECASE)


# Old models list the weights among the inputs.
def drop_weights(proto: onnx.ModelProto) -> None:
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    protos.set_repeated(proto.graph.input, inputs)


def fix(proto: onnx.ModelProto, values: Mapping[str, str], dims: Mapping[str, int] | None = None) -> None:
    """Make constants of inputs in place; a value is a number such as `16000`, or several with commas.

    `dims` has sizes by the names of dimensions.
    """
    inputs = {value.name: value for value in proto.graph.input}
    for name, text in values.items():
        _check_is_input(name, inputs)
        _clear_open([inputs[name]])
        dimensions.set_by_name(inputs[name], dims or {})
        if _has_no_elements(inputs[name]):
            raise InputError(f"input {name} has no elements, so --fix cannot set its value", hint="leave --fix out")
        proto.graph.initializer.append(numpy_helper.from_array(_parse_constant(inputs[name], text), name))
    drop_weights(proto)


# A word that is not a truth value becomes -1, which no conversion keeps.
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_PARSERS: Mapping[str, Callable[[str], float | int | bool]] = {
    "b": lambda text: _TRUTHS.get(text.strip().lower(), -1),
    "f": float,
}


def _parse_constant(value: onnx.ValueInfoProto, text: str) -> np.ndarray[Any, Any]:
    tensor = value.type.tensor_type
    dtype = np.dtype(dtype_of(value.name, tensor.elem_type))
    try:
        numbers = [_PARSERS.get(dtype.kind, int)(number) for number in text.split(",")]
        array = np.array(numbers).astype(dtype)
        # 300 as uint8 would silently become 44.
        exact = dtype.kind == "f" or array.tolist() == numbers
    except (ValueError, OverflowError):
        exact = False
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    if not exact or (not sizes and array.size > 1):
        raise InputError(
            f"{text!r} is not a valid value for input {value.name}, which is {dtype} and {_dims_text(value)}",
            hint=f"pass numbers: --fix {value.name}=1" + (",2,3" if sizes else ""),
        )
    shape = sizes if all(size > 0 for size in sizes) else [array.size if size <= 0 else size for size in sizes]
    try:
        return np.broadcast_to(array if array.size > 1 else array.reshape(()), shape).copy()
    except ValueError as fault:
        raise InputError(f"{text!r} has {array.size} numbers; input {value.name} is {_dims_text(value)}") from fault


def open_shapes(
    proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that belong to inputs with open dimensions and agree with the others.

    `dims` has sizes by the names of dimensions.
    """
    tensors = {value.name: protos.clone(value) for value in proto.graph.input if value.type.HasField("tensor_type")}
    _clear_open(tensors.values())
    for value in tensors.values():
        dimensions.set_by_name(value, dims)
    is_open = {name: _is_unranked(value) or dimensions.has_open(value) for name, value in tensors.items()}
    return {name: shape for name, shape in shapes.items() if is_open.get(name) and _fits(tensors[name], shape)}


def _is_unranked(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _fits(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> bool:
    if _is_unranked(value):
        return True
    dims = value.type.tensor_type.shape.dim
    return len(dims) == len(shape) and all(
        not dim.HasField("dim_value") or dim.dim_value == size for dim, size in zip(dims, shape, strict=True)
    )


def set_shapes(
    proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Write shapes into a graph's inputs in place, and drop what was inferred from open ones; return guesses as lines.

    `dims` has sizes by the names of dimensions. A dimension with the same name in several inputs has the same size. A
    batch that stays open is 1. An input with a size of 0 becomes a constant without elements.

    Raises:
        InputError: There is no such input, a shape does not fit it or `dims`, or dimensions stay open.
    """
    inputs = {value.name: value for value in proto.graph.input}
    declared = {name: _dims_text(value) for name, value in inputs.items()}  # errors name the dimensions of the file
    before = [_dims(value) for value in inputs.values()]
    sizes = dict(dims or {})
    _clear_open(inputs.values())
    for name, shape in shapes.items():
        _check_is_input(name, inputs)
        dimensions.check_shape(inputs[name], shape, dims or {})
        axes = [dim.dim_param for dim in inputs[name].type.tensor_type.shape.dim]
        sizes |= {axis: size for axis, size in zip(axes, shape, strict=False) if dimensions.is_name(axis)}
        _set_shape(inputs[name], shape)
    guessed = _set_by_name(inputs.values(), sizes)
    empty = {name for name, value in inputs.items() if _has_no_elements(value)}
    if before != [_dims(value) for value in inputs.values()] or empty:
        # They were inferred from the open dimensions.
        del proto.graph.value_info[:]
        for output in proto.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
    _check_tensors(inputs.values())
    dimensions.refuse_open(inputs.values(), declared, sizes)
    _make_empty_constants(proto, empty)
    return guessed


def _clear_open(values: Collection[onnx.ValueInfoProto]) -> None:
    """Remove the 0 or -1 that exporters write for an open dimension without a name: a 0 that is set has no elements."""
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value <= 0:
                dim.ClearField("dim_value")


def _set_by_name(values: Collection[onnx.ValueInfoProto], sizes: dict[str, int]) -> tuple[str, ...]:
    """Write the sizes that follow from names, and guess batches; return the guesses as lines."""
    for value in values:
        dimensions.set_by_name(value, sizes)
    # Inputs without elements come last: their batch is that of the others.
    guessed = [_guess_batch(value, sizes) for value in values if not _has_no_elements(value)]
    for value in values:  # again: a guessed batch has set more sizes
        dimensions.set_by_name(value, sizes)
    guessed += [_guess_batch(value, sizes) for value in values if _has_no_elements(value)]
    return tuple(filter(None, guessed))


def _has_no_elements(value: onnx.ValueInfoProto) -> bool:
    return any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in value.type.tensor_type.shape.dim)


# Inputs without elements have one value only, and no device accepts them.
def _make_empty_constants(proto: onnx.ModelProto, names: Collection[str]) -> None:
    for value in proto.graph.input:
        if value.name in names:
            dtype = dtype_of(value.name, value.type.tensor_type.elem_type)
            proto.graph.initializer.append(numpy_helper.from_array(np.zeros(_dims(value), dtype), value.name))
    if names:
        drop_weights(proto)


# A device returns nothing but tensors.
def check_outputs(proto: onnx.ModelProto) -> None:
    makers = {name: node for node in proto.graph.node for name in node.output}
    for value in proto.graph.output:
        kind = str(value.type.WhichOneof("value")).removesuffix("_type")
        if kind != "tensor":
            maker = makers.get(value.name)
            raise InputError(
                f"output {value.name} is not a tensor but a {kind}",
                details=f"{maker.op_type} node {maker.name or value.name!r} computes it" if maker else "",
                hint="export the model with tensors as its outputs",
            )


def _check_is_input(name: str, inputs: Mapping[str, Any]) -> None:
    if name not in inputs:
        raise InputError(f"the model has no input {name!r}", details="its inputs: " + ", ".join(inputs))


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _guess_batch(value: onnx.ValueInfoProto, sizes: dict[str, int]) -> str:
    dims = value.type.tensor_type.shape.dim
    if len(dims) < 2 or dims[0].HasField("dim_value") or not _BATCH.fullmatch(dims[0].dim_param):  # noqa: PLR2004 - a vector
        return ""
    before, name, option = _dims_text(value), dims[0].dim_param, "--shape"
    if dimensions.is_name(name):
        sizes[name] = 1
        option = f"--dim {shlex.quote(f'{name}=SIZE')}"
    dims[0].dim_value = 1
    return f"input {value.name} is {before} in the file: using a batch of 1 (set another with {option})"


def _set_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    if not _fits(value, shape):
        raise InputError(
            f"shape {shape} does not fit input {value.name}, which is {_dims_text(value)} in the model",
            details="only open dimensions can be set",
            hint="leave --shape out, or set only the open dimensions: `toolchain inspect model` shows them",
        )
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    for size in shape:
        dims.add().dim_value = size


def _dims_text(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return " x ".join(dim.dim_param or (str(dim.dim_value) if dim.dim_value > 0 else "?") for dim in dims) or "scalar"


def _check_tensors(values: Collection[onnx.ValueInfoProto]) -> None:
    for value in values:
        if _is_unranked(value):
            raise InputError(
                f"the number of dimensions of input {value.name} is not in the file",
                hint=f"set them, for example: --shape {value.name}:1,3,224,224",
            )
        if not value.type.tensor_type.HasField("shape"):
            raise InputError(f"input {value.name} is not a tensor", hint="export the model with tensors as its inputs")


def specs(proto: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the signature of the inputs, whose shapes are set; an InputError for an unsupported element type."""
    return tuple(
        TensorSpec(value.name, tuple(_dims(value)), dtype_of(value.name, value.type.tensor_type.elem_type))
        for value in proto.graph.input
    )


def dtype_of(name: str, element: int) -> str:
    """Return the name of an element type of ONNX's enumeration; as `supported_dtype`."""
    try:
        dtype = str(helper.tensor_dtype_to_np_dtype(element))
    except (KeyError, TypeError, ValueError):
        dtype = str(element)
    return supported_dtype(name, "string" if dtype == "object" else dtype)


def supported_dtype(name: str, dtype: str) -> str:
    """Return an element type that inputs and outputs may have; otherwise an InputError names the tensor."""
    if dtype not in DTYPES:
        raise InputError(f"tensor {name} has the element type {dtype}", hint="supported: " + ", ".join(DTYPES))
    return dtype
