"""The inputs of a model: which ones, of which shapes and element types.

A library is compiled for fixed shapes. Those that a file leaves open come from the user; a batch that stays open is 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.tensors import DTYPES, TensorSpec

# What exporters call a batch, or a dimension of which they know nothing: as the first of several, it is a batch.
_BATCH = re.compile(r"|\?|n|b|bs|none|-1|.*batch.*|unk_.*|.*dynamic.*|.*dim_?0|s\d+", re.IGNORECASE)


# Old models list the weights among the inputs.
def drop_weights(proto: onnx.ModelProto) -> None:
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    protos.set_repeated(proto.graph.input, inputs)


def fix(proto: onnx.ModelProto, values: Mapping[str, str]) -> None:
    """Make constants of inputs in place; a value is a number such as `16000`, or several with commas."""
    inputs = {value.name: value for value in proto.graph.input}
    for name, text in values.items():
        _check_is_input(name, inputs)
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


def open_shapes(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that belong to inputs with open dimensions and agree with the others."""
    tensors = {value.name: value for value in proto.graph.input if value.type.HasField("tensor_type")}
    is_open = {name: _is_unranked(value) or min(_dims(value), default=1) <= 0 for name, value in tensors.items()}
    return {name: shape for name, shape in shapes.items() if is_open.get(name) and _fits(tensors[name], shape)}


def _is_unranked(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _fits(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> bool:
    if _is_unranked(value):
        return True
    dims = _dims(value)
    # An open dimension is 0, from some exporters -1.
    return len(dims) == len(shape) and all(dim <= 0 or dim == size for dim, size in zip(dims, shape, strict=True))


def set_shapes(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Write shapes into a graph's inputs in place, and drop what was inferred from open ones; return guesses as lines.

    A dimension with the same name in several inputs has the same size. A batch that stays open is 1. An input with a
    size of 0 becomes a constant without elements.

    Raises:
        InputError: There is no such input, a shape does not fit it, or dimensions stay open.
    """
    inputs = {value.name: value for value in proto.graph.input}
    declared = {name: _dims_text(value) for name, value in inputs.items()}  # errors name the dimensions of the file
    before = [_dims(value) for value in inputs.values()]
    sizes_by_name: dict[str, int] = {}
    for name, shape in shapes.items():
        _check_is_input(name, inputs)
        dims = [dim.dim_param for dim in inputs[name].type.tensor_type.shape.dim]
        sizes_by_name |= {dim: size for dim, size in zip(dims, shape, strict=False) if _is_name(dim)}
        _set_shape(inputs[name], shape)
    empty = {name for name, shape in shapes.items() if 0 in shape}
    # A size of 0 may reach other inputs through the name of their dimension.
    empty_names = {name for name, size in sizes_by_name.items() if size == 0}
    for value in inputs.values():
        empty |= {value.name for dim in value.type.tensor_type.shape.dim if dim.dim_param in empty_names}
    for value in inputs.values():
        _set_by_name(value, sizes_by_name)
    _make_empty_constants(proto, empty)
    inputs = {name: value for name, value in inputs.items() if name not in empty}
    guessed = tuple(line for value in inputs.values() if (line := _guess_batch(value, sizes_by_name)))
    for value in inputs.values():  # again: a guessed batch has set more sizes
        _set_by_name(value, sizes_by_name)
    if empty or before != [_dims(value) for value in inputs.values()]:
        # They were inferred from the open dimensions.
        del proto.graph.value_info[:]
        for output in proto.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
    _check_closed(inputs.values(), declared)
    return guessed


# Inputs without elements have one value only, and no device accepts them.
def _make_empty_constants(proto: onnx.ModelProto, names: Collection[str]) -> None:
    for value in proto.graph.input:
        if value.name in names:
            sizes = [max(size, 0) for size in _dims(value)]
            dtype = dtype_of(value.name, value.type.tensor_type.elem_type)
            proto.graph.initializer.append(numpy_helper.from_array(np.zeros(sizes, dtype), value.name))
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


def _is_name(text: str) -> bool:
    """Whether a dimension's name means that it has the same size as others of that name."""
    return bool(text) and text not in {"?", "-1", "None"}


def _set_by_name(value: onnx.ValueInfoProto, sizes_by_name: Mapping[str, int]) -> None:
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_param in sizes_by_name:
            dim.dim_value = sizes_by_name[dim.dim_param]


def _guess_batch(value: onnx.ValueInfoProto, sizes_by_name: dict[str, int]) -> str:
    dims = value.type.tensor_type.shape.dim
    if len(dims) < 2 or dims[0].dim_value > 0 or not _BATCH.fullmatch(dims[0].dim_param):  # noqa: PLR2004 - a vector
        return ""
    if _is_name(dims[0].dim_param):
        sizes_by_name[dims[0].dim_param] = 1
    before = _dims_text(value)
    dims[0].dim_value = 1
    return f"input {value.name} is {before} in the file: using a batch of 1 (set another with --shape)"


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


def _check_closed(values: Collection[onnx.ValueInfoProto], declared: Mapping[str, str]) -> None:
    for value in values:
        if _is_unranked(value):
            raise InputError(
                f"the number of dimensions of input {value.name} is not in the file",
                hint=f"set them, for example: --shape {value.name}:1,3,224,224",
            )
        if not value.type.tensor_type.HasField("shape"):
            raise InputError(f"input {value.name} is not a tensor", hint="export the model with tensors as its inputs")
    open_inputs = [value for value in values if any(size <= 0 for size in _dims(value))]
    if not open_inputs:
        return
    examples = [f"--shape {value.name}:{','.join(str(max(dim, 1)) for dim in _dims(value))}" for value in open_inputs]
    hint = "set them, for example: " + " ".join(examples)
    names = [value.name for value in open_inputs]
    if len(names) == 1:
        raise InputError(f"input {names[0]} has open dimensions: {declared[names[0]]}", hint=hint)
    raise InputError(
        f"inputs {', '.join(names)} have open dimensions",
        details="\n".join(f"{name}: {declared[name]}" for name in names),
        hint=hint,
    )


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
