"""Running sums and products on a GPU, as reductions in which each element is computed of its own.

TVM's kernel for them has work-items read what others of their group have written, and nothing between the two that
would make them wait: it counts on processors whose work-items go in step by 32, which no Mali's do.

A row is cut into blocks of about the square root of its length. A block is reduced to one element, and so are all
blocks before each; an element then is what its own block has up to it, after what comes before that block. So nothing
waits for its neighbour, and of a row of n elements each is read some 2 sqrt(n) times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx

_SHORT = 64  # elements of a row that is one block
_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")


@dataclass(frozen=True)
class _Kind:
    """What runs along a row: how two elements become one, and what changes none."""

    reduced: Callable[..., Any]
    joined: Callable[[Any, Any], Any]
    neutral: int


_KINDS = {
    "relax.cumsum": _Kind(te.sum, lambda a, b: a + b, 0),
    "relax.cumprod": _Kind(_PRODUCT, lambda a, b: a * b, 1),
}


def in_blocks_of_rows(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose running sums and products are calls of kernels.

    Args:
        module: Operators as the importer writes them, with constant shapes.
    """
    writer = _Running(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            writer.builder_.update_func(name, writer.visit_expr(function))
    result: tvm.IRModule = writer.builder_.get()
    return result


@relax.expr_functor.mutator
class _Running(relax.PyExprMutator):  # type: ignore[misc]
    """Writes the kernels of each call in its place."""

    def visit_call_(self, call: relax.Call) -> Any:
        """Return the call, or what computes the same."""
        call = super().visit_call_(call)
        kind = _KINDS.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
        if kind is None:
            return call
        data, attrs = call.args[0], call.attrs
        row = _Row(kind, int(attrs.axis), bool(attrs.exclusive), str(call.ty.dtype.dtype))
        shape = [int(extent) for extent in data.ty.shape]
        if shape[row.axis] <= _SHORT:
            return self.builder_.call_te(row.short, data, primfunc_name_hint="running")
        size = math.isqrt(shape[row.axis])
        each = self.builder_.emit_te(row.blocks, data, size, primfunc_name_hint="running_blocks")
        before = self.builder_.emit_te(row.before, each, primfunc_name_hint="running_before")
        return self.builder_.call_te(row.long, data, before, size, primfunc_name_hint="running")


@dataclass(frozen=True)
class _Row:
    """A running reduction along one axis of a tensor.

    Attributes:
        kind: What is reduced.
        axis: The axis; none of its elements depends on those of other rows.
        exclusive: Whether an element counts only what comes before it.
        dtype: The element type that it is computed in.
    """

    kind: _Kind
    axis: int
    exclusive: bool
    dtype: str

    def short(self, data: te.Tensor) -> te.Tensor:
        """Reduce all that comes before each element of a row."""
        return self._up_to(data, data.shape, lambda _at: 0, int(data.shape[self.axis]))

    def blocks(self, data: te.Tensor, size: int) -> te.Tensor:
        """Reduce each block of so many elements to one; the last may have fewer."""
        length = int(data.shape[self.axis])
        step = te.reduce_axis((0, size), "step")

        def one(*indices: Any) -> Any:
            position = indices[self.axis] * size + step
            return self.kind.reduced(self._read(data, indices, position, position < length), axis=step)

        return te.compute(self._along(data.shape, -(-length // size)), one, "blocks")

    def before(self, each: te.Tensor) -> te.Tensor:
        """Reduce all blocks before each."""
        other = te.reduce_axis((0, int(each.shape[self.axis])), "block")

        def one(*indices: Any) -> Any:
            return self.kind.reduced(self._read(each, indices, other, other < indices[self.axis]), axis=other)

        return te.compute(each.shape, one, "before")

    def long(self, data: te.Tensor, before: te.Tensor, size: int) -> te.Tensor:
        """Join what comes before a block and what comes before each of its elements."""
        within = self._up_to(data, data.shape, lambda position: position - position % size, size)

        def one(*indices: Any) -> Any:
            return self.kind.joined(before(*self._at(indices, indices[self.axis] // size)), within(*indices))

        return te.compute(data.shape, one, "running")

    def _up_to(self, data: te.Tensor, shape: Sequence[Any], start: Callable[[Any], Any], limit: int) -> te.Tensor:
        """Reduce for each element those from a start up to it, of which there are so many at most."""
        step = te.reduce_axis((0, limit), "step")

        def one(*indices: Any) -> Any:
            position = start(indices[self.axis]) + step
            counts = position < indices[self.axis] if self.exclusive else position <= indices[self.axis]
            return self.kind.reduced(self._read(data, indices, position, counts), axis=step)

        return te.compute(shape, one, "within")

    def _read(self, data: te.Tensor, indices: Sequence[Any], position: Any, condition: Any) -> Any:
        """Return an element of the row where a condition holds, and else what changes nothing."""
        value = data(*self._at(indices, position)).astype(self.dtype)
        return tirx.if_then_else(condition, value, tirx.const(self.kind.neutral, self.dtype))

    def _at(self, indices: Sequence[Any], position: Any) -> list[Any]:
        return [*indices[: self.axis], position, *indices[self.axis + 1 :]]

    def _along(self, shape: Sequence[Any], size: int) -> list[Any]:
        return [*shape[: self.axis], size, *shape[self.axis + 1 :]]
