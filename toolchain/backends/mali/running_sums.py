"""Running sums and products on a GPU, as reductions that compute each element by itself.

In TVM's kernel for them, work-items read what others of their group have written without waiting for it: it relies on
processors whose work-items run in step by 32, which those of no Mali do.

A row is cut into blocks of about the square root of its length. Each block is reduced to one element, and so are all
blocks before each. An element then is the total before its block, joined with that of its block up to it. So nothing
waits for its neighbour, and each of n elements of a row is read some 2 sqrt(n) times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx

from toolchain.backends.mali.rewrite import mutate

_SHORT = 64  # elements of a row that is one block
_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")


@dataclass(frozen=True)
class _Kind:
    """What runs along a row: how two elements become one, and the element that changes no other."""

    reduced: Callable[..., Any]
    joined: Callable[[Any, Any], Any]
    neutral: int


_KINDS = {
    "relax.cumsum": _Kind(te.sum, lambda a, b: a + b, 0),
    "relax.cumprod": _Kind(_PRODUCT, lambda a, b: a * b, 1),
}


def replace_running_sums(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose running sums and products are calls of kernels.

    Args:
        module: Operators as the importer writes them, with constant shapes.
    """
    return mutate(module, _RunningMutator(module))


@relax.expr_functor.mutator
class _RunningMutator(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> Any:
        """Return the call, or a call of the kernels that compute the same."""
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
        """Reduce all elements up to each one of a row."""
        return self._up_to(data, lambda _position: 0, int(data.shape[self.axis]))

    def blocks(self, data: te.Tensor, size: int) -> te.Tensor:
        """Reduce each block of so many elements to one; the last may have fewer."""
        length = int(data.shape[self.axis])
        step = te.reduce_axis((0, size), "step")

        def block(*indices: Any) -> Any:
            position = indices[self.axis] * size + step
            return self.kind.reduced(self._read(data, indices, position, position < length), axis=step)

        return te.compute(self._replaced(data.shape, -(-length // size)), block, "blocks")

    def before(self, each: te.Tensor) -> te.Tensor:
        """Reduce all blocks before each."""
        other = te.reduce_axis((0, int(each.shape[self.axis])), "block")

        def total(*indices: Any) -> Any:
            return self.kind.reduced(self._read(each, indices, other, other < indices[self.axis]), axis=other)

        return te.compute(each.shape, total, "before")

    def long(self, data: te.Tensor, before: te.Tensor, size: int) -> te.Tensor:
        """Join the total before a block and that of the block up to each of its elements."""
        within = self._up_to(data, lambda position: position - position % size, size)

        def element(*indices: Any) -> Any:
            block = indices[self.axis] // size
            return self.kind.joined(before(*self._replaced(indices, block)), within(*indices))

        return te.compute(data.shape, element, "running")

    def _up_to(self, data: te.Tensor, start: Callable[[Any], Any], limit: int) -> te.Tensor:
        """Reduce for each element those from a start up to it, at most `limit` of them."""
        step = te.reduce_axis((0, limit), "step")

        def total(*indices: Any) -> Any:
            position = start(indices[self.axis]) + step
            counts = position < indices[self.axis] if self.exclusive else position <= indices[self.axis]
            return self.kind.reduced(self._read(data, indices, position, counts), axis=step)

        return te.compute(data.shape, total, "within")

    def _read(self, data: te.Tensor, indices: Sequence[Any], position: Any, condition: Any) -> Any:
        """Return the element at a position of the row where a condition holds, and else the neutral one."""
        value = data(*self._replaced(indices, position)).astype(self.dtype)
        return tirx.if_then_else(condition, value, tirx.const(self.kind.neutral, self.dtype))

    def _replaced(self, values: Sequence[Any], value: Any) -> list[Any]:
        """Return indices or extents with another one along the row."""
        return [*values[: self.axis], value, *values[self.axis + 1 :]]
