"""From kernels to what LLVM gets: those passes of TVM that a CPU needs, on kernels whose bound values stay apart.

TVM's simplifier puts what is bound in the place of its uses, all of it, and its code generator does so once more to
learn of bounds: a function of a function of a function, each of which uses its argument several times, takes minutes
then. Both stop at what reads memory. So bound floats and vectors are called reads while passes work on them, and are
reads of the stack when LLVM gets them, which makes registers of those: its code is the same.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import transform

from toolchain.backends.cpu.pieces import equal_pieces
from toolchain.backends.cpu.repeats import inputs_apart

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
