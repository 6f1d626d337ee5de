"""Changes of the element type."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.tensors import DTYPES


# TVM's converts 0.5 to False, and wraps numbers that an integer type cannot hold, NaN among them. The reference and
# this processor make the type's least number of them; the standard leaves it open.
@converter("Cast")
def cast(node: Node) -> Any:
    return cast_to(node, _supported(node, 0), dtype_name(node, node.attributes["to"]))


@converter("CastLike")
def cast_like(node: Node) -> Any:
    _supported(node, 1)
    return cast_to(node, _supported(node, 0), node.dtype(1))


def _supported(node: Node, index: int) -> Any:
    if node.dtype(index) not in {*DTYPES, "bfloat16"}:
        raise node.refusal(f"a tensor of the element type {node.dtype(index)}; supported: " + ", ".join(DTYPES))
    return node.inputs[index]


@converter("BitCast")
def bit_cast(node: Node) -> Any:
    """Return the same bits as another type of the same width."""
    source, target = node.dtype(0), dtype_name(node, node.attributes["to"])
    if np.dtype(source).itemsize != np.dtype(target).itemsize:
        raise node.refusal(f"{source} and {target} have different sizes")
    if source == "bool":
        return cast_to(node, node.emit(cast_to(node, node.inputs[0], "uint8")), target)
    if target == "bool":
        raise node.refusal(f"the bits of {source} cannot be read as {target}")
    return node.compute(
        lambda data: te.compute(data.shape, lambda *index: tirx.reinterpret(target, data(*index)), "bits"),
        node.inputs[0],
        name="bit_cast",
    )


def cast_to(node: Node, data: Any, target: str) -> Any:
    """Return an expression as another element type, with the conversions of C on this processor."""
    source = str(data.ty.dtype)
    if source == target:
        return data
    is_float = source.startswith(("float", "bfloat"))
    if target == "bool":
        return (
            node.compute(_is_true, data, name="truth") if is_float else relax.op.not_equal(data, relax.const(0, source))
        )
    if is_float and target.startswith(("int", "uint")):
        return node.compute(lambda tensor: _truncate(tensor, target), data, name="cast")
    if is_float and target == "bfloat16":
        data = node.compute(_round_to_bfloat16, node.emit(cast_to(node, data, "float32")), name="round_to_bfloat16")
    return relax.op.astype(data, target)


# Halves go to even. TVM computes in 32 bits what the file computes in bfloat16, and drops the conversions in between.
def _round_to_bfloat16(data: te.Tensor) -> te.Tensor:
    def element(*index: Any) -> Any:
        value = data(*index)
        bits = tirx.reinterpret("uint32", value)
        half = tirx.const(0x7FFF, "uint32") + tirx.bitwise_and(
            tirx.shift_right(bits, tirx.const(16, "uint32")), tirx.const(1, "uint32")
        )
        high_bits = tirx.bitwise_and(bits + half, tirx.const(0xFFFF0000, "uint32"))
        return tirx.Select(tirx.isnan(value), value, tirx.reinterpret("float32", high_bits))

    return te.compute(data.shape, element, "rounded")


# NaN is true: it is neither equal to 0 nor different from it for TVM.
def _is_true(data: te.Tensor) -> te.Tensor:
    floats = _floats(data)

    def element(*index: Any) -> Any:
        value, zero = data(*index).astype(floats), tirx.const(0, floats)
        return tirx.any(value < zero, value > zero, tirx.isnan(value))

    return te.compute(data.shape, element, "truth")


def _floats(data: te.Tensor) -> str:
    return "float64" if str(data.dtype) == "float64" else "float32"


# What the register's type cannot hold becomes its least number, as on x86.
def _truncate(data: te.Tensor, target: str) -> te.Tensor:
    register = "int64" if target in {"int64", "uint64", "uint32"} else "int32"
    floats = _floats(data)
    limit = float(2 ** (int(register[3:]) - 1))

    def element(*index: Any) -> Any:
        value = data(*index)
        if target == "uint64":
            below = value < tirx.const(0, str(data.dtype))  # it wraps around
            return tirx.Select(below, value.astype("int64").astype("uint64"), value.astype("uint64"))
        wide = value.astype(floats)
        fits = tirx.all(wide >= tirx.const(-limit, floats), wide < tirx.const(limit, floats))
        limited = tirx.Select(fits, wide, tirx.const(-limit, floats))
        return limited.astype(register).astype(target)

    return te.compute(data.shape, element, "cast")


def dtype_name(node: Node, element: int) -> str:
    """Return TVM's name for a value of ONNX's enumeration of element types."""
    name = str(helper.tensor_dtype_to_np_dtype(element))
    if name not in {*DTYPES, "bfloat16"}:
        raise node.refusal(f"the element type {'string' if name == 'object' else name} is not supported")
    return name
