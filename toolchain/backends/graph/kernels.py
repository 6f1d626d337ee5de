"""Kernels in a module: those of the importer, by what they compute, and others in the form that passes expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from toolchain.models.converters.quantized import packed
from toolchain.models.converters.quantized.packed import PACKED, ROUNDS, PackedWeights

_ONE = {(), (1,)}  # shapes of one number
_PAD = "PadInput"  # TOPI's name for what pads with a number
_FALSE, _INSIDE = 2, 1  # arguments of if_then_else


UNPACK = "unpack"
"""Name of the operation that makes float32 of packed weights."""


@dataclass(frozen=True)
class Meaning:
    """The operation that a kernel stands for.

    Attributes:
        name: Name of the operation.
        arguments: The Relax expressions that it reads.
        values: For `pad`, the padding before each axis, then the padding behind each; for `UNPACK`, how many inputs
            share a scale, and 1 if data may be rounded.
    """

    name: str
    arguments: tuple[Any, ...]
    values: tuple[int, ...] = ()


def meaning(call: Any, function: Any) -> Meaning | None:
    """Recognize limits by one number, padding with zeros and packed weights; None if a kernel does something else.

    Args:
        call: A call of `relax.call_tir`.
        function: The kernel that it calls.
    """
    arguments = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
    if not isinstance(function, tirx.PrimFunc) or not arguments:
        return None
    if PACKED in (function.attrs or {}):
        return Meaning(UNPACK, tuple(arguments), (int(str(function.attrs[PACKED])), int(ROUNDS in function.attrs)))
    node, block = function.body, None
    while not isinstance(node, tirx.BufferStore):
        inner = getattr(node, "block", None)
        block = block if inner is None else inner
        node = inner or getattr(node, "body", None)
        if node is None:
            return None
    if block is not None and str(block.name_hint) == _PAD:
        return _padding(call, function, node, arguments[0])
    return _limit(function, node, arguments)


def packed_weights(call: Any, module: tvm.IRModule) -> PackedWeights | None:
    """Return the packed weights that a call makes float32 of; None for other calls, and if they are not constants."""
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.call_tir":
        return None
    function = module[call.args[0]]
    if not isinstance(function, tirx.PrimFunc) or PACKED not in (function.attrs or {}):
        return None
    arguments = list(call.args[1].fields)
    if not all(isinstance(argument, tvm.ir.GenericConst) for argument in arguments):
        return None
    block, rounds = int(str(function.attrs[PACKED])), ROUNDS in function.attrs
    return packed.of_arrays([argument.value.numpy() for argument in arguments], block, rounds=rounds)


def _limit(function: tirx.PrimFunc, store: Any, arguments: list[Any]) -> Meaning | None:
    """Recognize max(data, number) and min(data, number)."""
    name = {tirx.Max: "maximum", tirx.Min: "minimum"}.get(type(store.value))
    if name is None or not _is_element(store, store.value.a, function.params[0]):
        return None
    operand = store.value.b
    if isinstance(operand, tirx.FloatImm):
        return Meaning(name, (arguments[0], relax.const(float(operand.value), "float32")))
    if not isinstance(operand, tvm.ir.expr.TensorLoad) or len(arguments) == 1:
        return None
    number = arguments[1]
    is_one = tuple(int(size) for size in operand.source.ty.shape) in _ONE
    return Meaning(name, (arguments[0], number)) if is_one and operand.source.same_as(function.params[1]) else None


def _is_element(store: Any, load: Any, parameter: Any) -> bool:
    """Whether a load reads the element of a parameter that the store writes."""
    return (
        isinstance(load, tvm.ir.expr.TensorLoad)
        and load.source.same_as(parameter)
        and len(load.indices) == len(store.indices)
        and all(mine.same_as(other) for mine, other in zip(load.indices, store.indices, strict=True))
    )


def _padding(call: Any, function: tirx.PrimFunc, store: Any, data: Any) -> Meaning | None:
    """Recognize if_then_else(inside, data[... - before], 0)."""
    if not isinstance(store.value, tvm.ir.Call):
        return None
    inside, filler = store.value.args[_INSIDE], store.value.args[_FALSE]
    if (
        not isinstance(filler, tirx.FloatImm)
        or float(filler.value) != 0
        or not inside.source.same_as(function.params[0])
    ):
        return None
    (result,) = call.ty_args
    before, after = [], []
    for store_index, index, size, out_size in zip(
        store.indices, inside.indices, data.ty.shape, result.shape, strict=True
    ):
        is_shifted = isinstance(index, tirx.Sub) and index.a.same_as(store_index) and isinstance(index.b, tirx.IntImm)
        if not (is_shifted or index.same_as(store_index)) or not all(
            isinstance(extent, tirx.IntImm) for extent in (size, out_size)
        ):
            return None
        before.append(int(index.b) if is_shifted else 0)
        after.append(int(out_size) - int(size) - before[-1])
    return Meaning("pad", (data,), (*before, *after)) if min(*before, *after) >= 0 else None


# --- functions of a module -------------------------------------------------------------------------------------------

_ONE_INPUT = 2  # parameters: the result too
_OPAQUE = 8  # TVM's kind of operation that no other is fused with


def in_root_block(body: tirx.Stmt) -> tirx.Stmt:
    """Return statements as MetaSchedule's passes over a whole module expect the body of any kernel: blocks."""
    for name_of_block in ("layer", "root"):
        block = s_tir.SBlock([], [], [], name_of_block, body)
        body = s_tir.SBlockRealize([], True, block)  # noqa: FBT003 - TVM has no name for it
    return body


def as_opaque(function: tirx.PrimFunc, attributes: Mapping[str, str]) -> tirx.PrimFunc:
    """Return a kernel as a module's function with some attributes, which passes leave alone."""
    # A pass that looks for reshapes wants a block in each kernel that has one input.
    if len(function.params) == _ONE_INPUT and not isinstance(function.body, s_tir.SBlockRealize):
        block = s_tir.SBlock([], [], [], "root", function.body)
        function = function.with_body(s_tir.SBlockRealize([], True, block))  # noqa: FBT003 - its signature
    return function.without_attr("global_symbol").with_attrs({**attributes, "op_pattern": _OPAQUE})
