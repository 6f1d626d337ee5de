"""What a caller supplies to a model: which inputs, of which shapes and element types.

A library is compiled for fixed shapes. Those that a file leaves open come from the user; a batch that stays open is 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.errors import InputError
from toolchain.tensors import DTYPES, TensorSpec

_BATCH = re.compile(r"|\?|n|b|bs|none|-1|.*batch.*|unk_.*|.*dynamic.*|.*dim_?0|s\d+", re.IGNORECASE)
"""What exporters call a batch, or a dimension of which they know nothing: as the first of several, it is a batch."""


def drop_weights(proto: onnx.ModelProto) -> None:
    """Old models list every weight among the inputs; whoever runs the model does not supply those."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    _replace(proto.graph.input, [value for value in proto.graph.input if value.name not in weights])


def fix(proto: onnx.ModelProto, values: Mapping[str, str]) -> None:
    """Make constants of inputs.

    Args:
        proto: The model, changed in place.
        values: By the name of the input, a number such as `16000`, or several with commas between them.

    Raises:
        InputError: There is no such input, or the value is none for it.
    """
    inputs = {value.name: value for value in proto.graph.input}
    for name, text in values.items():
        _known(name, inputs)
        proto.graph.initializer.append(numpy_helper.from_array(_constant(inputs[name], text), name))
    drop_weights(proto)


def _constant(value: onnx.ValueInfoProto, text: str) -> np.ndarray[Any, Any]:
    tensor = value.type.tensor_type
    dtype = np.dtype(dtype_of(value.name, tensor.elem_type))
    try:
        numbers = [_number(word, dtype) for word in text.split(",")]
        array = np.array(numbers).astype(dtype)
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


def _number(word: str, dtype: np.dtype[Any]) -> float | int | bool:
    if dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}.get(word.strip().lower(), -1)
    return float(word) if dtype.kind == "f" else int(word)


def open_shapes(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return those shapes that belong to inputs with open dimensions and agree with the others."""
    inputs = {value.name: value for value in proto.graph.input if value.type.HasField("tensor_type")}
    return {name: shape for name, shape in shapes.items() if name in inputs and _is_open(inputs[name], shape)}


def _is_open(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> bool:
    """Whether an input has open dimensions, and a shape may be the one that it takes."""
    if not value.type.tensor_type.HasField("shape"):
        return True
    dims = _dims(value)
    alike = len(dims) == len(shape) and all(own <= 0 or own == size for own, size in zip(dims, shape, strict=True))
    return alike and any(own <= 0 for own in dims)


def set_shapes(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Write shapes into a graph's inputs, and forget what was inferred from open ones.

    A dimension that several inputs name alike is the same size in all of them. A batch that stays open is 1.

    Args:
        proto: The model, changed in place.
        shapes: Shapes by input name. An input with a size of 0 becomes a constant without elements.

    Returns:
        What was guessed, a line each.

    Raises:
        InputError: There is no such input, a shape does not fit it, or dimensions stay open.
    """
    inputs = {value.name: value for value in proto.graph.input}
    declared = {name: _dims_text(value) for name, value in inputs.items()}
    before = [_dims(value) for value in inputs.values()]
    known: dict[str, int] = {}
    for name, shape in shapes.items():
        _known(name, inputs)
        known |= _named_sizes(inputs[name], shape)
        _set_shape(inputs[name], shape)
    empty = {name for name, shape in shapes.items() if 0 in shape}
    empty |= {value.name for value in inputs.values() if any(known.get(dim.dim_param) == 0 for dim in _dims_of(value))}
    for value in inputs.values():
        _set_named(value, known)
    _make_constant(proto, empty)
    inputs = {name: value for name, value in inputs.items() if name not in empty}
    guessed = tuple(line for value in inputs.values() if (line := _guess_batch(value, known)))
    for value in inputs.values():
        _set_named(value, known)
    if empty or before != [_dims(value) for value in inputs.values()]:
        _forget_inferred(proto.graph)
    _check_closed(inputs.values(), declared)
    return guessed


def _make_constant(proto: onnx.ModelProto, names: Collection[str]) -> None:
    """Make constants of inputs without elements: nobody can give them another value, and no device takes them."""
    for value in proto.graph.input:
        if value.name in names:
            sizes = [max(size, 0) for size in _dims(value)]
            dtype = dtype_of(value.name, value.type.tensor_type.elem_type)
            proto.graph.initializer.append(numpy_helper.from_array(np.zeros(sizes, dtype), value.name))
    if names:
        drop_weights(proto)


def _forget_inferred(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")


def check_outputs(proto: onnx.ModelProto) -> None:
    """See that all results are tensors: a device returns nothing else.

    Raises:
        InputError: One is a sequence, an optional or a map.
    """
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


def _known(name: str, inputs: Mapping[str, Any]) -> None:
    if name not in inputs:
        raise InputError(f"the model has no input {name!r}", details="its inputs: " + ", ".join(inputs))


def _dims_of(value: onnx.ValueInfoProto) -> Any:
    return value.type.tensor_type.shape.dim


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _named_sizes(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> dict[str, int]:
    dims = value.type.tensor_type.shape.dim
    return {dim.dim_param: size for dim, size in zip(dims, shape, strict=False) if _is_name(dim.dim_param)}


def _is_name(text: str) -> bool:
    """Whether a dimension's name says that it is the same as another's."""
    return bool(text) and text not in {"?", "-1", "None"}


def _set_named(value: onnx.ValueInfoProto, known: Mapping[str, int]) -> None:
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_param in known:
            dim.dim_value = known[dim.dim_param]


def _guess_batch(value: onnx.ValueInfoProto, known: dict[str, int]) -> str:
    dims = value.type.tensor_type.shape.dim
    if len(dims) < 2 or dims[0].dim_value > 0 or not _BATCH.fullmatch(dims[0].dim_param):  # noqa: PLR2004 - a vector
        return ""
    if _is_name(dims[0].dim_param):
        known[dims[0].dim_param] = 1
    before = _dims_text(value)
    dims[0].dim_value = 1
    return f"input {value.name} is {before} in the file: using a batch of 1 (set another with --shape)"


def _set_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = value.type.tensor_type.shape.dim
    unknown = value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    fits = unknown or (
        len(dims) == len(shape)
        and all(
            dim.dim_value <= 0 or dim.dim_value == want  # an open dimension is 0, from some exporters -1
            for dim, want in zip(dims, shape, strict=True)
        )
    )
    if not fits:
        raise InputError(
            f"shape {shape} does not fit input {value.name}, which is {_dims_text(value)} in the model",
            details="only open dimensions can be set",
            hint="leave --shape out, or set only the open dimensions: `toolchain model inspect` shows them",
        )
    del dims[:]
    for size in shape:
        dims.add().dim_value = size


def _dims_text(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return " x ".join(dim.dim_param or (str(dim.dim_value) if dim.dim_value > 0 else "?") for dim in dims) or "scalar"


def _check_closed(values: Collection[onnx.ValueInfoProto], declared: Mapping[str, str]) -> None:
    for value in values:
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            raise InputError(
                f"the number of dimensions of input {value.name} is not in the file",
                hint=f"set them, for example: --shape {value.name}:1,3,224,224",
            )
        if not value.type.tensor_type.HasField("shape"):
            raise InputError(f"input {value.name} is not a tensor", hint="export the model with tensors as its inputs")
    still = [value for value in values if any(size <= 0 for size in _dims(value))]
    if not still:
        return
    names = ", ".join(value.name for value in still)
    one = len(still) == 1
    raise InputError(
        f"input {names} has open dimensions: {declared[names]}" if one else f"inputs {names} have open dimensions",
        details="" if one else "\n".join(f"{value.name}: {declared[value.name]}" for value in still),
        hint="set them, for example: " + " ".join(_examples(still)),
    )


def _examples(values: Iterable[onnx.ValueInfoProto]) -> Iterator[str]:
    for value in values:
        yield f"--shape {value.name}:" + ",".join(str(max(size, 1)) for size in _dims(value))


def specs(proto: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the signature of the inputs, whose shapes are set.

    Raises:
        InputError: An input has an element type that is not supported.
    """
    return tuple(
        TensorSpec(value.name, tuple(_dims(value)), dtype_of(value.name, value.type.tensor_type.elem_type))
        for value in proto.graph.input
    )


def dtype_of(name: str, element: int) -> str:
    """Return the element type of a tensor, of ONNX's enumeration; as `supported_dtype`."""
    try:
        dtype = str(helper.tensor_dtype_to_np_dtype(element))
    except (KeyError, TypeError, ValueError):
        dtype = str(element)
    return supported_dtype(name, "string" if dtype == "object" else dtype)


def supported_dtype(name: str, dtype: str) -> str:
    """Return an element type that inputs and outputs may have.

    Raises:
        InputError: They may not.
    """
    if dtype not in DTYPES:
        raise InputError(f"tensor {name} has the element type {dtype}", hint="supported: " + ", ".join(DTYPES))
    return dtype


def _replace(field: Any, values: list[Any]) -> None:
    del field[:]
    field.extend(values)
