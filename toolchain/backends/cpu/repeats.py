"""Elements that a kernel computes more than once, and the buffers that must therefore stay apart.

The last tile of an axis is moved back to end with it, so that it overlaps with the tile before: what lies in both is
computed twice. That changes nothing as long as the inputs are what they were. But TVM's StorageRewrite stores a result
over its own input where that input is read for the last time, and the second time starts from the first one's result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from toolchain.backends.cpu.expr import Expr, coefficient, constant

Buffer = Any
Loop = Any


def with_inputs_apart(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep TVM from storing a result over its own input where elements of it may be computed more than once.

    The input is read once more behind those loops, and so is still in use when the result gets its memory. RemoveNoOp
    removes that read.

    Args:
        function: A kernel as StorageRewrite gets it: without blocks, buffers of one dimension, loops vectorized.
    """
    readers = _repeated(function)
    if not readers:
        return function
    return function.with_body(
        tvm_ffi.structural_map(function.body, (tirx.SeqStmt, lambda sequence: _read(sequence, readers)))
    )


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def _inputs_apart(function: tirx.PrimFunc, _module: tvm.IRModule, _context: Any) -> tirx.PrimFunc:
    return with_inputs_apart(function)


def inputs_apart() -> tvm.transform.Pass:
    """Return the pass that does `with_inputs_apart` to every kernel."""
    return _inputs_apart


def _read(sequence: tirx.SeqStmt, readers: Mapping[Buffer, set[Any]]) -> tirx.SeqStmt:
    """Read each input that is allocated in a sequence once more behind the last statement with one of its readers."""
    steps = list(sequence.seq)
    reads: dict[int, list[Any]] = defaultdict(list)
    for source in (step.buffer for step in steps if isinstance(step, tirx.AllocBuffer) and step.buffer in readers):
        last = max(index for index, step in enumerate(steps) if not readers[source].isdisjoint(_stores(step)))
        reads[last].append(tirx.Evaluate(tirx.BufferLoad(source, [0])))
    return (
        tirx.SeqStmt([statement for index, step in enumerate(steps) for statement in (step, *reads[index])])
        if reads
        else sequence
    )


def _repeated(function: tirx.PrimFunc) -> dict[Buffer, set[Any]]:
    """Return the stores that may be repeated by the buffers that they read; both buffers are the kernel's own.

    TVM leaves those out by itself that read what they store to, as the steps of a sum do.
    """
    around: dict[Any, list[Loop]] = defaultdict(list)
    for loop in _nodes(function.body, (tirx.For, tirx.While)):
        for inner in _nodes(loop, (tirx.BufferStore, tirx.AllocBuffer)):
            around[inner].append(loop)
    allocated = {allocation.buffer: around[allocation] for allocation in _nodes(function.body, tirx.AllocBuffer)}
    stores_by_source: dict[Buffer, set[Any]] = defaultdict(set)
    for store in _stores(function.body):
        sources = {load.source for load in _nodes(store.value, ir.TensorLoad)} & set(allocated)
        # TVM shares memory among the kernel's own buffers only.
        if not sources or store.buffer not in allocated or store.buffer in sources:
            continue
        loops = [loop for loop in around[store] if loop not in allocated[store.buffer]]
        if not _is_once(store.indices, loops):
            for source in sources:
                stores_by_source[source].add(store)
    return stores_by_source


def _is_once(indices: Sequence[Expr], loops: Sequence[Loop]) -> bool:
    """Whether every step of some loops is certain to store to an element of its own."""
    if len(indices) != 1 or any(isinstance(loop, tirx.While) for loop in loops):
        return False
    index, steps = indices[0], []
    if isinstance(index, tirx.Ramp):
        steps.append((constant(index.stride), constant(index.lanes)))
        index = index.base
    steps += [(coefficient(index, loop.loop_var), constant(loop.extent)) for loop in loops]
    reach = 0  # of the steps so far
    # Mixed radix: indices are distinct if each stride is larger than what all smaller ones reach together.
    for step, extent in sorted((abs(step or 0), extent or 0) for step, extent in steps if extent != 1):
        if step <= reach or not extent:
            return False
        reach += step * (extent - 1)
    return True


def _stores(statement: Any) -> list[Any]:
    return _nodes(statement, tirx.BufferStore)


def _nodes(statement: Any, kinds: Any) -> list[Any]:
    nodes: list[Any] = []
    tvm_ffi.structural_walk(statement, (kinds, nodes.append))
    return nodes
