"""Changes of the element type."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node
from toolchain.tensors import DTYPES


@converter("Cast")
def cast(node: Node) -> Any:
    """Convert Cast.

    TVM's takes 0.5 to False, and wraps numbers that an integer type does not hold, NaN among them, where the reference
    and this processor give the type's least: nothing in the standard says which.
    """
    return converted(node, _supported(node, 0), named(node, node.attributes["to"]))


@converter("CastLike")
def cast_like(node: Node) -> Any:
    """Convert CastLike; as `cast`."""
    _supported(node, 1)
    return converted(node, _supported(node, 0), node.dtype(1))


def _supported(node: Node, index: int) -> Any:
    """Return an input, unless it is of an element type that has no conversions."""
    if node.dtype(index) not in {*DTYPES, "bfloat16"}:
        raise node.refusal(f"a tensor of the element type {node.dtype(index)}; supported: " + ", ".join(DTYPES))
    return node.inputs[index]


@converter("BitCast")
def bit_cast(node: Node) -> Any:
    """Convert BitCast: the same bits under another name, of as many bits."""
    source, target = node.dtype(0), named(node, node.attributes["to"])
    if np.dtype(source).itemsize != np.dtype(target).itemsize:
        raise node.refusal(f"{source} and {target} have different sizes")
    if source == "bool":
        return converted(node, node.emit(converted(node, node.inputs[0], "uint8")), target)
    if target == "bool":
        raise node.refusal(f"the bits of {source} cannot be read as {target}")
    return node.compute(
        lambda data: te.compute(data.shape, lambda *at: tirx.reinterpret(target, data(*at)), "bits"),
        node.inputs[0],
        name="bit_cast",
    )


def converted(node: Node, data: Any, target: str) -> Any:
    """Return an expression as another element type, as C converts on this processor.

    Args:
        node: On whose behalf.
        data: What is converted.
        target: The other type.
    """
    source = str(data.ty.dtype)
    if source == target:
        return data
    is_float = source.startswith(("float", "bfloat"))
    if target == "bool":
        return (
            node.compute(_truth, data, name="truth") if is_float else relax.op.not_equal(data, relax.const(0, source))
        )
    if is_float and target.startswith(("int", "uint")):
        return node.compute(lambda tensor: _truncated(tensor, target), data, name="cast")
    if is_float and target == "bfloat16":
        data = node.compute(_of_8_bits, node.emit(converted(node, data, "float32")), name="round_to_bfloat16")
    return relax.op.astype(data, target)


def _of_8_bits(data: te.Tensor) -> te.Tensor:
    """Round 32-bit floats to those that bfloat16 has, halves to even.

    TVM computes in 32 bits what the file computes in bfloat16, and drops the conversions in between.
    """

    def rounded(*at: Any) -> Any:
        value = data(*at)
        bits = tirx.reinterpret("uint32", value)
        half = tirx.const(0x7FFF, "uint32") + tirx.bitwise_and(
            tirx.shift_right(bits, tirx.const(16, "uint32")), tirx.const(1, "uint32")
        )
        kept = tirx.bitwise_and(bits + half, tirx.const(0xFFFF0000, "uint32"))
        return tirx.Select(tirx.isnan(value), value, tirx.reinterpret("float32", kept))

    return te.compute(data.shape, rounded, "rounded")


def _truth(data: te.Tensor) -> te.Tensor:
    """Tell what is not 0. NaN is neither equal to 0 nor different from it."""
    floats = _floats(data)

    def one(*at: Any) -> Any:
        value, zero = data(*at).astype(floats), tirx.const(0, floats)
        return tirx.any(value < zero, value > zero, tirx.isnan(value))

    return te.compute(data.shape, one, "truth")


def _floats(data: te.Tensor) -> str:
    return "float64" if str(data.dtype) == "float64" else "float32"


def _truncated(data: te.Tensor, target: str) -> te.Tensor:
    """Convert to integers; what the register's type does not hold becomes its least number, as x86 has it."""
    register = "int64" if target in {"int64", "uint64", "uint32"} else "int32"
    floats = _floats(data)
    limit = float(2 ** (int(register[3:]) - 1))

    def one(*at: Any) -> Any:
        value = data(*at)
        if target == "uint64":
            below = value < tirx.const(0, str(data.dtype))  # it wraps around
            return tirx.Select(below, value.astype("int64").astype("uint64"), value.astype("uint64"))
        wide = value.astype(floats)
        fits = tirx.all(wide >= tirx.const(-limit, floats), wide < tirx.const(limit, floats))
        kept = tirx.Select(fits, wide, tirx.const(-limit, floats))
        return kept.astype(register).astype(target)

    return te.compute(data.shape, one, "cast")


def named(node: Node, element: int) -> str:
    """Return TVM's name of ONNX's enumeration of element types."""
    name = str(helper.tensor_dtype_to_np_dtype(element))
    if name not in {*DTYPES, "bfloat16"}:
        raise node.refusal(f"the element type {'string' if name == 'object' else name} is not supported")
    return name
