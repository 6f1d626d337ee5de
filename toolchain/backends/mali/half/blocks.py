"""Sums in half precision within blocks of some products, and in single across them.

Layers that TVM writes convert each factor to single precision and multiply there, which costs as much as if they had
never been halves. Here, in kernels that have a schedule already, some innermost steps of a sum get accumulators of
their own in half precision, which are then added to those in single. `marked` says beforehand which kernels may.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from toolchain.backends.mali.half.weight_scales import PRODUCTS, ROUNDED, greatest_sums
from toolchain.backends.mali.rewrite import MAIN, contains, map_kernels, substitute, variables_of

MARK = "toolchain.half_products"
"""Annotation of a block that sums up products: how many of them half precision can hold."""

_NAME = "half_sums"  # of accumulators: by it the runtime knows kernels that need numbers below 2 ** -14
_DONE = "toolchain.half_sums"  # attribute of a kernel that sums up in half precision
_KERNEL_CALL = "relax.call_tir"
_HALF, _SINGLE = "float16", "float32"
_SERIAL = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
_INNER = (*_SERIAL, tirx.ForKind.VECTORIZED)


# --- before fusion: which sums are bounded ----------------------------------------------------------------------------


def mark_bounded(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module in which the blocks of kernels that may sum in half precision say so.

    Args:
        module: Calls of kernels, with their weights as constants.
    """
    # By kernel, the arguments of each of its calls: constants, and None for others.
    calls: dict[str, list[list[Any]]] = {}
    for block in module[MAIN].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and getattr(call.op, "name", "") == _KERNEL_CALL:
                arguments = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
                values = [
                    argument.value.numpy() if isinstance(argument, tvm.ir.GenericConst) else None
                    for argument in arguments
                ]
                calls.setdefault(str(call.args[0].name_hint), []).append(values)
    return map_kernels(module, lambda name, function: _mark(function, calls[name]) if name in calls else function)


def _mark(function: tirx.PrimFunc, calls: list[list[Any]]) -> tirx.PrimFunc:
    """Annotate the sums of a kernel that cannot overflow, as one factor is a constant that is small enough."""
    numbers = {parameter: number for number, parameter in enumerate(function.params)}

    def mark(block: Any) -> Any:
        for load in _product(block.body) or ():
            number = numbers.get(load.source)
            if number is None or any(number >= len(values) or values[number] is None for values in calls):
                continue
            if all(_is_bounded(values[number], load, block) for values in calls):
                notes = {**dict(block.annotations), MARK: tirx.IntImm("int32", PRODUCTS)}
                return _copy(block, annotations=notes)
        return block

    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, mark)))


def _is_bounded(weights: Any, load: Any, block: Any) -> bool:
    """Whether no sum of some products with weights overflows, for any value of the other factors."""
    reduced = {iterator.var for iterator in block.iter_vars if iterator.iter_type == tirx.IterVar.CommReduce}
    summed = [axis for axis, index in enumerate(load.indices) if variables_of(index) & reduced]
    rows = np.moveaxis(weights, summed, range(-len(summed), 0)) if summed else weights
    count = math.prod(weights.shape[axis] for axis in summed)
    return bool(np.all(greatest_sums(rows.reshape(-1, count)) <= ROUNDED))


def _copy(block: Any, **changes: Any) -> Any:
    """Return a block with other fields; TVM's nodes have no such function."""
    names = (
        "iter_vars",
        "reads",
        "writes",
        "name_hint",
        "body",
        "init",
        "alloc_buffers",
        "match_buffers",
        "annotations",
    )
    return s_tir.SBlock(*(changes.get(name, getattr(block, name)) for name in names))


def _product(store: Any) -> tuple[Any, Any] | None:
    """Return what a step of a sum multiplies: a and b, halves, of `c[...] = c[...] + float(a[...]) * float(b[...])`."""
    if not isinstance(store, tirx.BufferStore) or str(store.buffer.dtype) != _SINGLE:
        return None
    total = store.value
    if not isinstance(total, tirx.Add) or not isinstance(total.b, tirx.Mul):
        return None
    if not isinstance(total.a, tvm.ir.expr.TensorLoad) or not total.a.source.same_as(store.buffer):
        return None
    factors = [total.b.a, total.b.b]
    if not all(
        isinstance(factor, tirx.Cast) and isinstance(factor.value, tvm.ir.expr.TensorLoad) for factor in factors
    ):
        return None
    if any(str(factor.value.source.dtype) != _HALF for factor in factors):
        return None
    first, second = factors
    return first.value, second.value


# --- after scheduling: accumulators of their own ----------------------------------------------------------------------


def sum_in_blocks(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose marked kernels sum in half precision within blocks, where their schedule lets them.

    Args:
        module: Kernels with a schedule. One whose sum is not the innermost nest of loops keeps its single precision.
    """

    def change(_name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
        root = function.body
        if not isinstance(root, s_tir.SBlockRealize):
            return function
        path = _path(root.block.body)
        plan = _plan(path) if path else None
        if plan is None or not plan.is_alone():
            return function
        partial = tirx.decl_buffer([*plan.tile] or [1], _HALF, name=_NAME, scope="local")

        def replace(loop: Any) -> Any:
            return _with_partial_sums(plan, partial) if loop.same_as(plan.loops[0]) else loop

        body = tvm_ffi.structural_map(root.block.body, (tirx.For, replace))
        block = _copy(root.block, body=body, alloc_buffers=[*root.block.alloc_buffers, partial])
        return function.with_body(s_tir.SBlockRealize(root.iter_values, root.predicate, block)).with_attr(_DONE, 1)

    return map_kernels(module, change)


def summary(module: tvm.IRModule) -> str:
    """Say how many of a scheduled module's layers in half precision sum up in it, and name those that do not."""
    kernels = {
        str(variable.name_hint): function
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and (sums_in_half(function) or sums_halves_in_single(function))
    }
    single = [name for name, function in kernels.items() if not sums_in_half(function)]
    text = f"{len(kernels) - len(single)} of {len(kernels)} kernels that multiply in half precision also sum in it"
    return f"{text}; in single precision: {', '.join(sorted(single))}" if single else text


def sums_in_half(function: tirx.PrimFunc) -> bool:
    """Whether a kernel was written anew by `sum_in_blocks`."""
    return _DONE in (function.attrs or {})


def sums_halves_in_single(function: tirx.PrimFunc) -> bool:
    """Whether a kernel multiplies half precision and adds the products up in single."""
    return contains(function.body, s_tir.SBlock, lambda block: _product(block.body) is not None)


def _path(statement: Any) -> list[Any]:
    """Return the loops around the first marked step of a sum, and its block; nothing where there is none."""
    if isinstance(statement, tirx.For):
        inner = _path(statement.body)
        return [statement, *inner] if inner else []
    if isinstance(statement, tirx.SeqStmt):
        return next((path for child in statement.seq if (path := _path(child))), [])
    if isinstance(statement, s_tir.SBlockRealize) and MARK in statement.block.annotations:
        return [statement] if statement.block.init is None and _product(statement.block.body) else []
    return []


@dataclass(frozen=True)
class _Plan:
    """Which steps share an accumulator in half precision.

    Attributes:
        loops: The loops around these steps, from the outermost that all of them are in; it may be divided.
        steps: How many turns of the outermost loop they are.
        realize: The step.
    """

    loops: tuple[Any, ...]
    steps: int
    realize: Any

    @property
    def spatial(self) -> list[Any]:
        """The loops over accumulators."""
        return [loop for loop in self.loops if loop.loop_var not in _used(self.realize, reduced=True)]

    @property
    def tile(self) -> list[int]:
        """Extents of those."""
        return [int(loop.extent) for loop in self.spatial]

    def is_alone(self) -> bool:
        """Whether nothing else within the loops touches the accumulators."""
        step = self.realize.block

        def touches(block: Any) -> bool:
            regions = [*block.reads, *block.writes]
            return not block.same_as(step) and any(region.source.same_as(step.body.buffer) for region in regions)

        return not contains(self.loops[0], s_tir.SBlock, touches)


def _plan(path: Sequence[Any]) -> _Plan | None:
    """Choose the loops whose products share an accumulator: as many as `MARK` allows, from the innermost outwards."""
    *loops, realize = path
    reduced, across = _used(realize, reduced=True), _used(realize, reduced=False)
    guarded = not isinstance(realize.predicate, tirx.IntImm) or int(realize.predicate) != 1
    if guarded or realize.block.alloc_buffers or realize.block.match_buffers or reduced & across:
        return None
    remaining, first, steps = int(realize.block.annotations[MARK]), len(loops), 1
    best: tuple[int, int] | None = None
    while first and _is_plain(loops[first - 1]) and remaining > 1:
        first -= 1
        loop, extent = loops[first], int(loops[first].extent)
        if loop.loop_var not in reduced:
            continue
        if loop.kind not in _SERIAL:
            break
        steps = max(size for size in range(1, min(remaining, extent) + 1) if extent % size == 0)
        remaining //= steps
        if steps > 1:
            best = (first, steps)
        if steps < extent:  # a loop that is divided has to be the outermost
            break
    return None if best is None else _Plan(tuple(loops[best[0] :]), best[1], realize)


def _is_plain(loop: Any) -> bool:
    zero = isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0
    return zero and isinstance(loop.extent, tirx.IntImm) and loop.kind in _INNER


def _used(realize: Any, *, reduced: bool) -> set[Any]:
    """Return the variables that indices of a sum depend on: those it is summed over, or those of its result."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    variables = [
        variables_of(value) for iterator, value in pairs if (iterator.iter_type == tirx.IterVar.CommReduce) == reduced
    ]
    return set().union(*variables)


def _with_partial_sums(plan: _Plan, partial: Any) -> Any:
    """Return the loops of a plan that clear accumulators, add up in half precision, and add that to the sums."""
    product = _product(plan.realize.block.body)
    assert product is not None  # noqa: S101 - what `_path` looks for
    accumulator = [loop.loop_var for loop in plan.spatial] or [tirx.IntImm("int32", 0)]

    def add(realize: Any) -> Any:
        if not realize.block.same_as(plan.realize.block):
            return realize
        first, second = (_in_loops(load, plan.realize) for load in product)
        return tirx.BufferStore(partial, tirx.BufferLoad(partial, accumulator) + first * second, accumulator)

    def flush(indices: list[Any]) -> Any:
        store = _in_loops(plan.realize.block.body, plan.realize)
        own = dict(zip((loop.loop_var for loop in plan.spatial), indices, strict=False))
        target = [substitute(index, own) for index in store.indices]
        total = tirx.BufferLoad(store.buffer, target) + tirx.Cast(_SINGLE, tirx.BufferLoad(partial, indices))
        return tirx.BufferStore(store.buffer, total, target)

    loop = tvm_ffi.structural_map(plan.loops[0], (s_tir.SBlockRealize, add))
    clear = _nest(plan, lambda indices: tirx.BufferStore(partial, tirx.const(0, _HALF), indices))
    flushing = _nest(plan, flush)
    if plan.steps == int(loop.extent):
        return tirx.SeqStmt([clear, loop, flushing])

    # The loop is divided: each turn of the outer one clears, takes some steps, and flushes.
    def integer(number: int) -> Any:
        return tirx.IntImm(str(loop.loop_var.ty.dtype), number)

    turn, step = (tirx.Var(f"{loop.loop_var.name}_{suffix}", loop.loop_var.ty) for suffix in ("turn", "step"))
    body = substitute(loop.body, {loop.loop_var: turn * integer(plan.steps) + step})
    inner = tirx.For(step, loop.min, integer(plan.steps), loop.kind, body, annotations=loop.annotations)
    turns = integer(int(loop.extent) // plan.steps)
    return tirx.For(turn, loop.min, turns, tirx.ForKind.SERIAL, tirx.SeqStmt([clear, inner, flushing]))


def _in_loops(node: Any, realize: Any) -> Any:
    """Return a part of a block with the values of its iterators in place of them."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return substitute(node, {iterator.var: value for iterator, value in pairs})


def _nest(plan: _Plan, body: Any) -> Any:
    """Return loops of their own over the accumulators of a plan."""
    fresh = [tirx.Var(f"{loop.loop_var.name}_p", loop.loop_var.ty) for loop in plan.spatial]
    statement = body(fresh or [tirx.IntImm("int32", 0)])
    for variable, loop in reversed(list(zip(fresh, plan.spatial, strict=True))):
        statement = tirx.For(variable, loop.min, loop.extent, loop.kind, statement)
    return statement
