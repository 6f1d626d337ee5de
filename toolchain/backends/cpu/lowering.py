"""From kernels to what LLVM gets: those passes of TVM that a CPU needs, on kernels whose bound values stay apart.

TVM's simplifier puts what is bound in the place of its uses, all of it, and its code generator does so once more to
learn of bounds: a function of a function of a function, each of which uses its argument several times, takes minutes
then. Both stop at what reads memory. So bound floats and vectors are called reads while passes work on them, and are
reads of the stack when LLVM gets them, which makes registers of those: its code is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import transform
from tvm.tirx import ForKind

from toolchain.backends.cpu.expr import Expr, coefficient, constant

# --- elements that are computed more than once -----------------------------------------------------------------------

# The last tile of an axis is moved back to end with it, so that it overlaps with the tile before: what lies in both is
# computed twice. That changes nothing as long as the inputs are what they were. But TVM's StorageRewrite stores a
# result over its own input where that input is read for the last time, and the second time starts from the first one's
# result.

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
        tvm_ffi.structural_map(function.body, (tirx.SeqStmt, lambda sequence: _read_again(sequence, readers)))
    )


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def _inputs_apart(function: tirx.PrimFunc, _module: tvm.IRModule, _context: Any) -> tirx.PrimFunc:
    return with_inputs_apart(function)


def inputs_apart() -> tvm.transform.Pass:
    """Return the pass that does `with_inputs_apart` to every kernel."""
    return _inputs_apart


def _read_again(sequence: tirx.SeqStmt, readers: Mapping[Buffer, set[Any]]) -> tirx.SeqStmt:
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


# --- equal pieces for the cores --------------------------------------------------------------------------------------

# The runtime's threads take one piece after the other, so that a thread that gets no CPU holds up one of them and not
# its whole share. TVM's code generator cuts a loop by rounding up: of ten iterations in eight pieces it makes five
# pieces of two, which two threads cannot share equally.

PER_CORE = 4
"""Pieces for each core; `kPiecesPerThread` of runtime/threads/pool.h is the same number."""

_USUAL_CORES = 4  # of a board whose cores are not known


def with_equal_pieces(function: tirx.PrimFunc, cores: int) -> tirx.PrimFunc:
    """Return a kernel whose shared loops have at most as many iterations as there are pieces.

    Args:
        function: A kernel as the code generator gets it.
        cores: Cores of the board.
    """
    count = PER_CORE * cores

    def cut(loop: tirx.For) -> tirx.For:
        extent = loop.extent
        is_equal = isinstance(extent, tirx.IntImm) and (int(extent) <= count or int(extent) % count == 0)
        if loop.kind != ForKind.PARALLEL or is_equal:
            return loop
        dtype = str(loop.loop_var.ty.dtype)
        piece = tirx.Var("piece", dtype)
        # Pieces differ by one iteration at most.
        begin, end = (extent * (piece + offset) // count for offset in (0, 1))
        inner = tirx.For(loop.loop_var, begin, end - begin, ForKind.SERIAL, loop.body)
        return tirx.For(piece, tirx.const(0, dtype), tirx.const(count, dtype), ForKind.PARALLEL, inner)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, cut)))


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def equal_pieces(function: tirx.PrimFunc, _module: tvm.IRModule, _context: Any) -> tirx.PrimFunc:
    """Do `with_equal_pieces` to every kernel, for the cores of its target."""
    target = function.attrs["target"] if function.attrs and "target" in function.attrs else tvm.target.Target.current()
    cores = int(target.attrs.get("num-cores", 0)) if target else 0
    return with_equal_pieces(function, cores or _USUAL_CORES)


# --- the passes ------------------------------------------------------------------------------------------------------

PIPELINE = "toolchain.cpu"
"""The name that `tvm.tirx.build` knows the pipeline by, once this module is imported."""

_BOUND = "tirx.toolchain_bound"
_READS = 2  # TVM's CallEffectKind::kReadState


# The operator stands around bound values until `_with_values_on_stack` takes it away.
tvm.get_global_func("ir.RegisterOp")(_BOUND, "a bound value, which is not simplified together with what uses it")
ir.register_op_attr(_BOUND, "TCallEffectKind", _READS)
ir.register_op_attr(_BOUND, "TVectorizable", value=True)
_OPERATOR = ir.Op.get(_BOUND)


def with_values_apart(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel whose bound floats and vectors are not simplified together with what uses them.

    Args:
        function: The kernel; what it binds as an index is left as it is, since the simplifier has to see through it.
    """

    def mark(statement: tirx.Bind) -> tirx.Bind:
        kind = statement.value.ty
        dtype = str(getattr(kind, "dtype", ""))
        if dtype.startswith("bool") or not (dtype.startswith(("float", "bfloat")) or "x" in dtype):
            return statement
        return tirx.Bind(statement.var, ir.Call(_OPERATOR, [statement.value], None, None, None, kind))

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.Bind, mark)))


def _sequence(*, scheduled: bool) -> transform.Pass:
    """Return the passes that come before a kernel's signature.

    Args:
        scheduled: Whether it is for kernels with blocks of a schedule. Their buffers are larger than what is used of
            them, and their conditions and indices are as the schedule left them; those of templates are written as
            they are to be, and so are spared three passes that simplify everything once more.
    """
    of_schedules = (
        s_tir.transform.CompactBufferAllocation,
        s_tir.transform.HoistIfThenElse,
        s_tir.transform.RenormalizeSplitPattern,
        tirx.transform.RemoveNoOp,
        inputs_apart,
        tirx.transform.StorageRewrite,
    )
    steps = (
        s_tir.transform.CanonicalizeLoop,
        s_tir.transform.LowerInitBlock,
        s_tir.transform.PlanAndUpdateBufferAllocationLocation,
        s_tir.transform.ConvertBlocksToOpaque,
        s_tir.transform.CompactBufferAllocation,
        s_tir.transform.LowerMatchBuffer,
        s_tir.transform.StmtSimplify,
        s_tir.transform.LowerOpaqueBlock,
        tirx.transform.FlattenBuffer,
        tirx.transform.BF16ComputeLegalize,
        lambda: tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition,
        tirx.transform.VectorizeLoop,
        inputs_apart,
        tirx.transform.StorageRewrite,
        s_tir.transform.HoistIfThenElse,
        tirx.transform.UnrollLoop,
        s_tir.transform.RenormalizeSplitPattern,
        tirx.transform.StmtSimplify,
        tirx.transform.RemoveNoOp,
        s_tir.transform.RewriteUnsafeSelect,
        tirx.transform.CommonSubexprElim,
    )
    return transform.Sequential([step() for step in steps if scheduled or step not in of_schedules])


@transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
def _lower(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Lower all kernels of a module, each as its kind asks for."""

    def without_scope(statement: tirx.AttrStmt) -> tirx.Stmt:
        # Marks of TVM's own script, of which its code generator warns the user.
        return statement.body if statement.attr_key == "pragma_scope" else statement

    # Kernels of schedules have blocks and need more passes than those of templates.
    kinds: dict[bool, dict[Any, Any]] = {True: {}, False: {}}
    for name, function in module.functions_items():
        plain = function.with_body(tvm_ffi.structural_map(function.body, (tirx.AttrStmt, without_scope)))
        kinds[isinstance(function.body, s_tir.SBlockRealize)][name] = with_values_apart(plain)
    finished: dict[Any, Any] = {}
    for scheduled, functions in kinds.items():
        finished |= dict(_sequence(scheduled=scheduled)(tvm.IRModule(functions)).functions_items())
    result = tvm.IRModule({name: finished[name] for name, _ in module.functions_items()}, attrs=module.attrs)
    with_signatures = transform.Sequential(
        [
            equal_pieces,
            tirx.transform.FP8ComputeLegalize(),
            tirx.transform.VerifyMemory(),
            tirx.transform.AnnotateEntryFunc(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.MakePackedAPI(),
            tirx.transform.FP8StorageLegalize(),
            tirx.transform.BF16StorageLegalize(),
        ]
    )
    return with_signatures(result)


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def _with_values_on_stack(function: tirx.PrimFunc, _module: tvm.IRModule, _context: Any) -> tirx.PrimFunc:
    """Undo what `with_values_apart` did, in a way that the code generator does not see through."""

    def store_and_read(statement: tirx.Bind) -> Any:
        value = statement.value
        if type(value) is not ir.Call or not _OPERATOR.same_as(value.op):
            return statement
        # LLVM promotes the buffer of one element to a register.
        buffer = tirx.decl_buffer((1,), value.ty.dtype, "bound")
        read = tirx.Bind(statement.var, tirx.BufferLoad(buffer, [0]))
        return tirx.SeqStmt([tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value.args[0], [0]), read])

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.Bind, store_and_read)))


_FOR_LLVM = transform.Sequential(
    [tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin(), _with_values_on_stack]
)
_FOR_DEVICES = transform.Sequential([])  # a CPU has no device beside it

tirx.register_tir_pipeline(PIPELINE, lambda: (_lower, lambda: _FOR_LLVM, lambda: _FOR_DEVICES))
