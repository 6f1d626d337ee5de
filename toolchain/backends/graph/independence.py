"""Proof that a network computes each row of a batch on its own, and all rows in the same way.

Each kernel is read as what it computes: loops that store a value at an index. Where a tensor has the rows is known for
the inputs, and follows for what a kernel stores from what it reads. The proof fails where the value of a row depends on
another row, or on the number of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import ir, relax, s_tir, sym, tirx
from tvm.ir import prim

from toolchain.backends.graph.unify import DifferentError
from toolchain.models.converters.sequence.recurrence import RECURRENCE, from_json

_CALL = "relax.call_tir"
_PLAIN = (relax.ShapeExpr, ir.StringImm, prim.IntImm, prim.FloatImm)
_UNKNOWN = "its kernel computes several rows together, or cannot be read"


@dataclass(frozen=True)
class Rows:
    """Where a tensor has the rows of a batch: an index of an axis, divided by `inner`, modulo the number of rows.

    Attributes:
        axis: The axis.
        inner: Indices of the axis that belong to one row and lie together.
    """

    axis: int
    inner: int = 1


@dataclass(frozen=True, eq=False)
class _Tensor:
    """What is known of a tensor: where its rows are, or its value if it is a constant.

    Attributes:
        rows: Where the rows are; None if they share the tensor.
        value: The constant; None for others.
        is_even: Whether all elements are the same number.
    """

    rows: Rows | None = None
    value: NDArray[Any] | None = None
    is_even: bool = False

    def is_even_along(self, axes: Sequence[int]) -> bool:
        """Whether the index on some axes makes no difference."""
        value = self.value
        return self.is_even or (value is not None and all((value == value.take([0], axis)).all() for axis in axes))


def check_rows(module: tvm.IRModule, inputs: Sequence[Rows | None], batch: int) -> list[Rows | None]:
    """Check that a network computes each row of a batch on its own.

    Args:
        module: The network, as calls of kernels that are not scheduled.
        inputs: Where each input has the rows; None for an input that all rows share.
        batch: The number of rows.

    Returns:
        Where each result has the rows; None for a result that all rows share.

    Raises:
        DifferentError: That could not be shown of a binding.
    """
    main = module["main"]
    known: dict[Any, Any] = {var: _Tensor(rows) for var, rows in zip(main.params, inputs, strict=True)}
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    for number, binding in enumerate(bindings):
        try:
            known[binding.var] = _result(binding.value, known, module, batch)
        except DifferentError as fault:
            fault.binding = number
            raise
    results = _tensor_of(main.body.body, known)
    return [each.rows for each in (results if isinstance(results, list) else [results])]


def _tensor_of(value: Any, known: dict[Any, Any]) -> Any:
    """Return what is known of an expression; a list for a tuple."""
    if isinstance(value, relax.Tuple):
        return [_tensor_of(field, known) for field in value.fields]
    if isinstance(value, tvm.ir.GenericConst):
        return _Tensor(value=value.value.numpy() if hasattr(value.value, "numpy") else None)
    if isinstance(value, _PLAIN):
        return _Tensor()
    if value not in known:
        raise DifferentError(_UNKNOWN)
    return known[value]


def _result(value: Any, known: dict[Any, Any], module: tvm.IRModule, batch: int) -> Any:
    if isinstance(value, relax.TupleGetItem):
        return _tensor_of(value.tuple_value, known)[value.index]
    if not isinstance(value, relax.Call):
        return _tensor_of(value, known)
    if isinstance(value.op, tvm.ir.Op) and value.op.name == _CALL:
        function, operands = module[value.args[0]], _tensor_of(value.args[1], known)
        is_recurrence = RECURRENCE in (function.attrs or {})
        kernel = _of_recurrence if is_recurrence else _of_kernel
        results = kernel(function, operands, batch)
        return results if len(results) > 1 else results[0]
    if any(each.rows for each in _flat(_tensor_of(relax.Tuple(list(value.args)), known))):
        raise DifferentError(_UNKNOWN)
    return _Tensor()


def _flat(tensors: Any) -> list[_Tensor]:
    return [each for part in tensors for each in _flat(part)] if isinstance(tensors, list) else [tensors]


def _of_kernel(function: tirx.PrimFunc, operands: Sequence[_Tensor], batch: int) -> list[_Tensor]:
    return _Kernel(function, batch).results(operands)


def _of_recurrence(function: tirx.PrimFunc, operands: Sequence[_Tensor], batch: int) -> list[_Tensor]:
    """Return what is known of the results of a recurrence, which computes each sequence on its own."""
    recurrence = from_json(str(function.attrs[RECURRENCE]))
    named = dict(zip(recurrence.arguments, operands, strict=True))
    steps = recurrence.steps if recurrence.batch_first else 1
    rows = named["projected"].rows
    if rows is None and any(each.rows for each in operands):
        raise DifferentError(_UNKNOWN)
    if rows is None:
        return [_Tensor() for _ in recurrence.results]
    inner = max(1, rows.inner // steps)
    if recurrence.batch % (inner * batch):  # the rows are time steps
        raise DifferentError(_UNKNOWN)
    places = {"projected": Rows(0, inner * steps), "lengths": Rows(0, inner)}
    places |= dict.fromkeys(("hidden", "memory"), Rows(1, inner))
    for name, operand in named.items():
        is_shared = operand.rows is None and (name not in places or operand.is_even_along([places[name].axis]))
        if not is_shared and operand.rows != places.get(name):
            raise DifferentError(_UNKNOWN)
    every = Rows(0 if recurrence.batch_first else 2, inner)
    return [_Tensor(every if name == "every" else Rows(1, inner)) for name in recurrence.results]


class _Kernel:
    """A kernel of blocks, each of which stores values at indices that its axes give."""

    def __init__(self, function: tirx.PrimFunc, batch: int) -> None:
        self._function, self._batch = function, batch
        self._buffers: dict[Any, _Tensor] = {}

    def results(self, operands: Sequence[_Tensor]) -> list[_Tensor]:
        """Return what is known of the results, from what is known of the operands."""
        params = list(self._function.params)
        self._buffers.update(zip(params, operands, strict=False))
        blocks = list(_blocks(self._function.body))
        if not blocks and any(each.rows for each in operands):
            raise DifferentError(_UNKNOWN)
        for block in blocks:
            self._compute(block)
        return [self._of(buffer) for buffer in params[len(operands) :]]

    def _of(self, buffer: Any) -> _Tensor:
        return self._buffers.get(buffer, _Tensor())

    def _compute(self, block: s_tir.SBlock) -> None:
        """Find out what a block knows of the tensors that it stores to."""
        stores = _stores(block)
        read = dict.fromkeys(load.source for store in stores for load in _loads(store))
        written = dict.fromkeys(store.buffer for store in stores)
        if not any(self._of(buffer).rows for buffer in (*read, *written)):
            is_even = len(stores) == 1 and not _variables(stores[0].value)
            self._buffers.update(dict.fromkeys(written, _Tensor(is_even=is_even)))
            return
        rows = next((each for each in self._candidates(stores[0], read) if self._holds(block, stores, each)), None)
        if rows is None or any(not self._may_have_rows(buffer) for buffer in written):
            raise DifferentError(_UNKNOWN)
        self._buffers.update(dict.fromkeys(written, _Tensor(rows)))

    def _may_have_rows(self, buffer: Any) -> bool:
        """Whether nothing else was stored to a tensor before, or the same for all rows."""
        before = self._buffers.get(buffer)
        return before is None or before.rows is not None or before.is_even

    def _candidates(self, store: Any, read: Iterable[Any]) -> Iterator[Rows]:
        """Yield where a tensor that is stored to may have the rows: where an operand has them comes first."""
        if rows := self._of(store.buffer).rows:
            yield rows
            return
        likely = [rows for buffer in read if (rows := self._of(buffer).rows)]
        possible = [
            Rows(axis, inner)
            for axis, extent in enumerate(store.buffer.shape)
            for inner in range(1, int(extent) // self._batch + 1)
            if int(extent) % (self._batch * inner) == 0
        ]
        yield from dict.fromkeys((*(rows for rows in likely if rows in possible), *possible))

    def _holds(self, block: s_tir.SBlock, stores: Sequence[Any], rows: Rows) -> bool:
        """Whether each row of what is stored there comes from the same row of the operands."""
        extents = {axis.var: axis.dom for axis in block.iter_vars if axis.iter_type == tirx.IterVar.DataPar}
        index = stores[0].indices[rows.axis]
        domain = extents.get(index)
        is_same = all(store.indices[rows.axis].same_as(index) for store in stores)
        if (
            domain is None
            or not is_same
            or int(domain.min)
            or int(domain.extent) != int(stores[0].buffer.shape[rows.axis])
        ):
            return False
        own = {**self._buffers, **{store.buffer: _Tensor(rows) for store in stores}}
        split = _Split.of(block, index, rows, self._batch)
        return all(split.is_own_row(store, own, rows.axis) for store in stores)


@dataclass(frozen=True)
class _Split:
    """An axis of a block as two axes and the number of the row between them.

    Attributes:
        axis: The axis.
        value: The same by the new axes.
        row: The number of the row.
        batch: The number of rows.
        analyzer: Knows the bounds of all axes.
    """

    axis: Any
    value: Any
    row: Any
    batch: int
    analyzer: sym.Analyzer

    @classmethod
    def of(cls, block: s_tir.SBlock, axis: Any, rows: Rows, batch: int) -> _Split:
        analyzer = sym.Analyzer()
        for other in block.iter_vars:
            if not other.var.same_as(axis):
                analyzer.bind(other.var, other.dom)
        dtype = str(axis.ty.dtype)
        extent = int(next(each.dom.extent for each in block.iter_vars if each.var.same_as(axis)))
        names = {"outer": extent // (batch * rows.inner), "row": batch, "inner": rows.inner}
        outer, row, inner = variables = [tirx.Var(name, dtype) for name in names]
        for variable, size in zip(variables, names.values(), strict=True):
            analyzer.bind(variable, ir.Range(tirx.const(0, dtype), tirx.const(size, dtype)))
        return cls(axis, (outer * batch + row) * rows.inner + inner, row, batch, analyzer)

    def is_own_row(self, store: Any, tensors: Mapping[Any, _Tensor], axis: int) -> bool:
        """Whether a stored value depends on the same row of the tensors that it reads, and not on the row's number."""
        is_right = True

        def check(load: ir.TensorLoad) -> Any:
            nonlocal is_right
            is_right = is_right and self._reads_own_row(load, tensors.get(load.source, _Tensor()))
            return tirx.Var("loaded", load.ty)

        others = [index for number, index in enumerate(store.indices) if number != axis]
        values = [self._by_new_axes(value) for value in (store.value, *others)]
        rest = [tvm_ffi.structural_map(value, (ir.TensorLoad, check)) for value in values]
        return is_right and not any(map(self._depends, rest))

    def _by_new_axes(self, value: Any) -> Any:
        return tvm_ffi.structural_map(value, (ir.Var, lambda var: self.value if var.same_as(self.axis) else var))

    def _depends(self, value: Any) -> bool:
        """Whether a value depends on the row's number; values that are loaded are checked before."""
        return self.row in _variables(value) and self.row in _variables(self.analyzer.simplify(value))

    def _reads_own_row(self, load: Any, tensor: _Tensor) -> bool:
        rows = tensor.rows
        dependent = [axis for axis, index in enumerate(load.indices) if self._depends(index)]
        if rows is None:
            return not dependent or tensor.is_even_along(dependent)
        if set(dependent) - {rows.axis}:
            return False
        index = load.indices[rows.axis]
        place = tirx.floordiv(index, rows.inner)
        parts = tirx.floordiv(place, self.batch), tirx.floormod(index, rows.inner)
        return self.analyzer.can_prove_equal(tirx.floormod(place, self.batch), self.row) and not any(
            map(self._depends, parts)
        )


def _blocks(statement: Any) -> Iterator[Any]:
    """Yield the blocks of a kernel in order.

    Raises:
        DifferentError: It has something else than blocks in loops.
    """
    if isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _blocks(part)
    elif isinstance(statement, tirx.For):
        yield from _blocks(statement.body)
    elif isinstance(statement, s_tir.SBlockRealize) and _is_always(statement.predicate):
        if statement.block.iter_vars:
            yield statement.block
        else:  # the root, or a block for one number
            yield from _blocks(statement.block.body)
    else:
        raise DifferentError(_UNKNOWN)


def _is_always(predicate: Any) -> bool:
    return isinstance(predicate, prim.IntImm) and bool(int(predicate))


def _stores(block: s_tir.SBlock) -> list[Any]:
    """Return the statements of a block that store values, with what is bound to names put in its place."""
    stores: list[Any] = []
    bound: dict[Any, Any] = {}
    for part in (block.init, block.body):
        for statement in getattr(part, "seq", [part]) if part is not None else ():
            if isinstance(statement, tirx.Bind):
                bound[statement.var] = _replaced(statement.value, bound)
            elif isinstance(statement, tirx.BufferStore):
                stores.append(_replaced(statement, bound))
            else:
                raise DifferentError(_UNKNOWN)
    return stores


def _replaced(value: Any, bound: Mapping[Any, Any]) -> Any:
    return tvm_ffi.structural_map(value, (ir.Var, lambda var: bound.get(var, var))) if bound else value


def _loads(value: Any) -> list[Any]:
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.TensorLoad, loads.append))
    return loads


def _variables(value: Any) -> set[Any]:
    variables: set[Any] = set()
    tvm_ffi.structural_walk(value, (ir.Var, variables.add))
    return variables
