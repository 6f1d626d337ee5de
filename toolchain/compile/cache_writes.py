"""Operations that return a tensor with some elements replaced, and kernels that replace them in the tensor itself.

A kernel reads only what is new, and where it goes. A position outside of the tensor, which the standard forbids, writes
nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.graph.values import name_of, shape_of
from toolchain.models.converters.tensor.indexing import TENSOR_SCATTER

WRITES = "toolchain.writes_cache"
"""Attribute of a kernel that changes its first argument."""

_NOT_FUSED = 8  # TVM's kind of operation that no other is fused with


@dataclass(frozen=True, eq=False)
class Write:
    """An operation.

    Attributes:
        kind: `rows`, `elements`, `range` or `where`.
        cache: The tensor whose elements are replaced.
        arguments: What else the operation reads: positions or a condition, then the new elements.
        axis: Axis of the positions, for `elements` and `range`.
        flag: For `range`, whether positions begin again behind the end of the axis; for `where`, the truth value where
            elements are replaced.
    """

    kind: str
    cache: Any
    arguments: tuple[Any, ...]
    axis: int = 0
    flag: bool = False


def recognized(call: Any, module: tvm.IRModule) -> list[Write]:
    """Return how an operation may be understood as one that replaces elements: of a selection, in two ways."""
    writes: list[Write] = []
    name = name_of(call)
    if name == "scatter_nd" and str(call.attrs.reduction) == "update":
        writes = [Write("rows", call.args[0], (call.args[1], call.args[2]))]
    elif name == "scatter_elements" and str(call.attrs.reduction) == "update":
        rank = len(shape_of(call.args[0].ty) or ())
        writes = [Write("elements", call.args[0], (call.args[1], call.args[2]), int(call.attrs.axis) % max(rank, 1))]
    elif name == "where":
        condition, first, second = call.args
        writes = [Write("where", second, (condition, first), flag=True), Write("where", first, (condition, second))]
    elif name == "call_tir" and TENSOR_SCATTER in (attributes := module[call.args[0]].attrs or {}):
        axis, wraps = (int(number) for number in str(attributes[TENSOR_SCATTER]).split())
        cache, update, starts = call.args[1].fields
        writes = [Write("range", cache, (starts, update), axis, bool(wraps))]
    return [write for write in writes if _has_axes(write)]


def _has_axes(write: Write) -> bool:
    """Whether all its tensors are of known shapes, which are not those of single numbers."""
    return all(shape_of(value.ty) for value in (write.cache, *write.arguments))


# --- kernels ---------------------------------------------------------------------------------------------------------


def kernel(write: Write, cache: relax.TensorType, axes: Sequence[int]) -> tirx.PrimFunc:
    """Write the kernel of an operation: its first argument is the cache, the others are those of the operation.

    Args:
        write: The operation.
        cache: Shape and element type of the cache as it is stored.
        axes: The axes of the stored cache in the order in which the operation has them.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        attributes = {WRITES: write.kind, "tirx.is_scheduled": True, "op_pattern": _NOT_FUSED}
        T.func_attr({"tirx.noalias": True, **attributes})
        stored = T.arg("cache", T.buffer(shape_of(cache), str(cache.dtype)))
        given = [
            T.arg(name, T.buffer(shape_of(value.ty), str(value.ty.dtype)))
            for name, value in zip(("where", "new"), write.arguments, strict=True)
        ]
        _Writer(write, stored, tuple(axes), *given).write()
    function: tirx.PrimFunc = builder.get()
    body = function.body
    for name in ("written", "root"):  # passes over a whole module expect the body of each kernel to be in blocks
        block = s_tir.SBlock([], [], [], name, body)
        body = s_tir.SBlockRealize([], True, block)  # noqa: FBT003 - TVM has no name for it
    return function.with_body(body).without_attr("global_symbol")


class _Writer:
    def __init__(self, write: Write, stored: Any, axes: tuple[int, ...], where: Any, new: Any) -> None:
        self._write, self._stored, self._axes, self._where, self._new = write, stored, axes, where, new
        extents = [int(extent) for extent in stored.shape]
        self._shape = [extents[axis] for axis in axes]  # as the operation has it

    def write(self) -> None:
        writers = {"rows": self._rows, "elements": self._elements, "range": self._range, "where": self._select}
        writers[self._write.kind]()

    def _rows(self) -> None:
        """Replace rows whose positions are given for the first axes."""
        *places, depth = (int(extent) for extent in self._where.shape)
        with _loops(places) as place:
            positions = [T.Bind(self._where[(*place, axis)]) for axis in range(depth)]
            inside = [self._is_inside(position, axis) for axis, position in enumerate(positions)]
            with T.If(tirx.all(*inside)), T.Then(), _loops(self._shape[depth:]) as rest:
                self._store([*map(_index, positions), *rest], self._new[(*place, *rest)])

    def _elements(self) -> None:
        """Replace elements whose positions are given for one axis."""
        axis = self._write.axis
        with _loops([int(extent) for extent in self._where.shape]) as place:
            position = T.Bind(self._where[tuple(place)])
            with T.If(self._is_inside(position, axis)), T.Then():
                self._store([*place[:axis], _index(position), *place[axis + 1 :]], self._new[tuple(place)])

    def _range(self) -> None:
        """Replace rows from a position on, which is given for each batch."""
        axis = self._write.axis
        shape = [int(extent) for extent in self._new.shape]
        shape[axis] = min(shape[axis], self._shape[axis])
        with _loops(shape[: axis + 1]) as first:
            position = T.Bind(self._where[first[0]].astype("int64") + first[axis].astype("int64"))
            if self._write.flag:
                position = T.Bind(tirx.floormod(position, tirx.const(self._shape[axis], "int64")))
            with T.If(self._is_inside(position, axis)), T.Then(), _loops(shape[axis + 1 :]) as rest:
                self._store([*first[:axis], _index(position), *rest], self._new[(*first, *rest)])

    def _select(self) -> None:
        """Replace elements by a condition, which is read once where it is the same for several of them."""
        rank = len(self._shape)
        condition = [1] * (rank - len(self._where.shape)) + [int(extent) for extent in self._where.shape]
        varying = [axis for axis in range(rank) if condition[axis] > 1]
        others = [axis for axis in range(rank) if condition[axis] == 1]
        with _loops([self._shape[axis] for axis in varying]) as first:
            known = dict(zip(varying, first, strict=True))
            truth = _broadcast(self._where, [known.get(axis, 0) for axis in range(rank)])
            truth = truth if self._write.flag else tirx.Not(truth)
            with T.If(truth), T.Then(), _loops([self._shape[axis] for axis in others]) as rest:
                place = known | dict(zip(others, rest, strict=True))
                position = [place[axis] for axis in range(rank)]
                self._store(position, _broadcast(self._new, position))

    def _is_inside(self, position: Any, axis: int) -> Any:
        dtype = str(position.ty.dtype)
        below = position < tirx.const(self._shape[axis], dtype)
        return below if dtype.startswith("uint") else tirx.all(position >= tirx.const(0, dtype), below)

    def _store(self, position: Sequence[Any], value: Any) -> None:
        stored: list[Any] = [None] * len(self._axes)
        for axis, index in zip(self._axes, position, strict=True):
            stored[axis] = index
        T.buffer_store(self._stored, value, stored)


def _index(position: Any) -> Any:
    return tirx.Cast("int32", position)


def _broadcast(buffer: Any, position: Sequence[Any]) -> Any:
    """Read an element of a buffer whose axes may be fewer, or have one element for all positions."""
    extents = [int(extent) for extent in buffer.shape]
    own = position[len(position) - len(extents) :]
    return buffer[tuple(0 if extent == 1 else index for extent, index in zip(extents, own, strict=True))]


@contextlib.contextmanager
def _loops(extents: Sequence[int]) -> Iterator[list[Any]]:
    """Open nested loops."""
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(T.serial(0, extent)) for extent in extents]
