"""A network for any number of rows, from the network of one row: called for each row of a batch, one after the other.

The module has three functions. `main` takes the whole batch, and makes room for the results. `rows` divides the rows
into halves until one is left, since Relax has no loops. `row` copies a row of the inputs, computes the network, and
copies what it returns into the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.relax.op.builtin import alloc_tensor
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.graph.independence import Rows
from toolchain.compile.executable import ENTRY, Compiled

ROW = "row"
"""The function of the network of one row."""

_ROWS = "rows"
_DTYPE = "int64"
_COUNT, _NUMBER, _TENSORS = "count", "number", "tensors"


@dataclass(frozen=True)
class _Batch:
    """A tensor of one row, and the tensor of all rows that it is a part of.

    Attributes:
        name: The name of the variables.
        type: The type of the tensor of one row.
        rows: Where the batch has the rows; None if they share the tensor.
    """

    name: str
    type: relax.TensorType
    rows: Rows | None

    @property
    def shape(self) -> list[int]:
        """The shape of one row."""
        return [int(extent) for extent in self.type.shape]

    @property
    def dtype(self) -> str:
        return str(self.type.dtype)

    def variable(self, count: Any) -> relax.Var:
        """Return a variable of the tensor of so many rows."""
        shape: list[Any] = [tirx.const(extent, _DTYPE) for extent in self.shape]
        if self.rows:
            shape[self.rows.axis] = count * shape[self.rows.axis]
        return relax.Var(self.name, relax.TensorType(shape, self.dtype))

    def kernel(self, *, is_input: bool) -> tirx.PrimFunc:
        """Return a kernel that copies the row of a number from the batch, or into it."""
        count, number = tirx.Var(_COUNT, _DTYPE), tirx.Var(_NUMBER, _DTYPE)
        batch_shape = list(self.variable(count).ty.shape)
        with IRBuilder() as builder, T.prim_func(s_tir=True, private=True):
            T.func_attr({"tirx.noalias": True})
            batch = T.arg("batch", T.buffer(batch_shape, self.dtype))
            if not is_input:
                row = T.arg("row", T.buffer(self.shape, self.dtype))
            T.arg(_NUMBER, number)
            if is_input:
                row = T.arg("row", T.buffer(self.shape, self.dtype))
            extents = [tirx.const(extent, _DTYPE) for extent in self.shape]
            with T.grid(*extents) if extents else contextlib.nullcontext([]) as axes:
                inside = [axes] if isinstance(axes, ir.Var) else list(axes)
                place = self._place(inside, count, number)
                if is_input:
                    T.buffer_store(row, batch[tuple(place)], inside)
                else:
                    T.buffer_store(batch, row[tuple(inside)], place)
        return builder.get()

    def _place(self, index: Sequence[Any], count: Any, number: Any) -> list[Any]:
        """Return the index in the batch of an element of a row."""
        if self.rows is None:
            return list(index)
        place, inner = list(index), self.rows.inner
        own = index[self.rows.axis]
        place[self.rows.axis] = (own // inner * count + number) * inner + own % inner
        return place


def for_each_row(row: Compiled, inputs: Sequence[Rows | None], results: Sequence[Rows | None]) -> Compiled:
    """Return the network for any number of rows.

    Args:
        row: The scheduled network for one row.
        inputs: Where each input has the rows; one of them with one index for each row.
        results: Where each result has the rows.
    """
    network = row.module[ENTRY]
    given = [_Batch(var.name, var.ty, rows) for var, rows in zip(network.params, inputs, strict=False)]
    types = list(network.ret_ty.fields) if isinstance(network.ret_ty, relax.TupleType) else [network.ret_ty]
    made = [_Batch(f"result_{i}", kind, rows) for i, (kind, rows) in enumerate(zip(types, results, strict=True))]
    kernels = {variable: function for variable, function in row.module.functions_items() if variable.name_hint != ENTRY}
    builder = relax.BlockBuilder(tvm.IRModule(kernels))
    row_function = builder.add_func(_row_function(builder, network, given, made), ROW)
    module = builder.get()
    loop = ir.GlobalVar(_ROWS)
    module[loop] = _loop_function(row_function, loop)
    module[ENTRY] = _main_function(network, given, made, loop)
    normalized: tvm.IRModule = relax.transform.Normalize()(module)
    return Compiled(normalized, row.params)


def network_in(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose function `main` calls the kernels: that of one row if the module is for any number."""
    functions = {str(variable.name_hint): function for variable, function in module.functions_items()}
    if _ROWS not in functions:
        return module
    return tvm.IRModule({**functions, ENTRY: functions[ROW].with_attr("global_symbol", ENTRY)})


def _fields(returned: relax.Expr) -> list[relax.Expr]:
    """Return the results of a network one by one."""
    if isinstance(returned, relax.Tuple):
        return list(returned.fields)
    if isinstance(returned.ty, relax.TupleType):
        return [relax.TupleGetItem(returned, number) for number in range(len(returned.ty.fields))]
    return [returned]


def _row_function(
    builder: relax.BlockBuilder, network: relax.Function, inputs: Sequence[_Batch], results: Sequence[_Batch]
) -> relax.Function:
    """Return the function that computes the row of a number; its other argument has all tensors.

    Their types are compared here, and not in each call of the function `rows`.
    """
    count, number = tirx.Var(_COUNT, _DTYPE), tirx.Var(_NUMBER, _DTYPE)
    batches = [tensor.variable(count) for tensor in (*inputs, *results)]
    weights = network.params[len(inputs) :]
    tensors, kind = relax.Var(_TENSORS, relax.AnyType()), relax.TupleType([var.ty for var in (*batches, *weights)])
    typed = relax.Var("typed", kind)
    taken: list[relax.Binding] = [relax.MatchCast(typed, tensors, kind)]
    # The weights keep their variables, which the network reads.
    for index, variable in enumerate((*batches, *weights)):
        taken.append(relax.VarBinding(variable, relax.TupleGetItem(typed, index)))
    put = []
    for tensor, batch, variable in zip(inputs, batches, network.params, strict=False):
        row: Any = batch
        if tensor.rows:
            kernel = builder.add_func(tensor.kernel(is_input=True), "take_row")
            row = relax.op.call_tir(kernel, relax.Tuple([batch, number]), tensor.type)
        taken.append(relax.VarBinding(variable, row))
    for tensor, batch, value in zip(results, batches[len(inputs) :], _fields(network.body.body), strict=True):
        kernel = builder.add_func(tensor.kernel(is_input=False), "put_row")
        call = relax.op.call_tir_inplace(kernel, relax.Tuple([batch, value, number]), [0], [batch.ty])
        put.append(relax.VarBinding(relax.Var(batch.name, batch.ty), call))
    blocks = [relax.DataflowBlock(taken), *network.body.blocks, relax.DataflowBlock(put)]
    result = relax.Tuple([binding.var for binding in put])  # which no pass leaves out then
    return relax.Function([tensors, number], relax.SeqExpr(blocks, result), relax.AnyType())


def _loop_function(row: ir.GlobalVar, loop: ir.GlobalVar) -> relax.Function:
    """Return the function that computes the rows from a number up to another one."""
    tensors = relax.Var(_TENSORS, relax.AnyType())
    begin, end, middle = (tirx.Var(name, _DTYPE) for name in ("begin", "end", "middle"))
    params, kind = [tensors, begin, end], relax.AnyType()
    # A function that calls itself needs its type before.
    relax.expr._update_type(loop, relax.FuncType([param.ty for param in params], kind, purity=False))  # noqa: SLF001

    def sequence(*values: tuple[Any, Any]) -> relax.SeqExpr:
        bindings = [relax.VarBinding(variable, value) for variable, value in values]
        return relax.SeqExpr([relax.BindingBlock(bindings)], values[-1][0])

    first, second, only, result = (relax.Var(name, kind) for name in ("first", "second", "only", "result"))
    one = sequence((only, relax.Call(row, [tensors, begin])))
    halves = sequence(
        (middle, (begin + end) // 2),
        (first, relax.Call(loop, [tensors, begin, middle])),
        (second, relax.Call(loop, [tensors, middle, end])),
    )
    is_last = relax.Var("is_last", ir.PrimType("bool"))
    body = sequence((is_last, end - begin <= 1), (result, relax.If(is_last, one, halves)))
    return relax.Function(params, body, kind, is_pure=False).with_attr("global_symbol", _ROWS)


def _main_function(
    network: relax.Function, inputs: Sequence[_Batch], results: Sequence[_Batch], loop: ir.GlobalVar
) -> relax.Function:
    """Return the function that computes all rows."""
    count = tirx.Var(_COUNT, _DTYPE)
    batches, made = ([tensor.variable(count) for tensor in tensors] for tensors in (inputs, results))
    weights = [relax.Var(weight.name, weight.ty) for weight in network.params[len(inputs) :]]
    bindings = [relax.VarBinding(var, alloc_tensor(var.ty.shape, str(var.ty.dtype), 0)) for var in made]
    tensors = relax.Tuple([*batches, *made, *weights])
    call = relax.Call(loop, [tensors, tirx.const(0, _DTYPE), count])
    bindings.append(relax.VarBinding(relax.Var("done", relax.AnyType()), call))
    result = relax.Tuple(made) if isinstance(network.ret_ty, relax.TupleType) else made[0]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    return relax.Function([*batches, *weights], body, result.ty, is_pure=False).with_attr("global_symbol", ENTRY)
