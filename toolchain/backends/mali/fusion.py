"""Which operators become one kernel: as TVM fuses them, but for small results that are spread over a large one.

The gate of a squeeze-and-excitation block is one number for each channel. Fused with the product that scales the image
by it, its layer would be computed anew for each pixel.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from toolchain.backends.graph import fusion
from toolchain.backends.graph.values import shape_of

_PATTERN = "op_pattern"
_INJECTIVE = 2  # TVM's number for what is no epilogue of a layer, and still becomes one kernel with what is like it


def fused(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module of operators as calls of fused kernels."""
    transform = relax.transform
    written = tvm.transform.Sequential([transform.LegalizeOps(), transform.AnnotateTIROpPattern()])(module)
    return fusion.fuse(transform.FoldConstant()(_set_apart(written)))


def _set_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Give calls that spread what another kernel made a kernel of their own, which is not fused with that."""
    builder = relax.BlockBuilder(module)
    made: dict[Any, Any] = {}

    def changed(call: Any) -> Any:
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.call_tir" or not _spreads(call):
            return call
        name, *others = call.args
        kernel = module[name]
        if int((kernel.attrs or {}).get(_PATTERN, _INJECTIVE)) >= _INJECTIVE:
            return call
        if name not in made:
            made[name] = builder.add_func(kernel.with_attr(_PATTERN, _INJECTIVE), name.name_hint)
        return relax.Call(call.op, [made[name], *others], call.attrs, call.ty_args)

    functions = {
        name: relax.Function(
            one.params, tvm_ffi.structural_map(one.body, (relax.Call, changed)), one.ret_ty, one.is_pure, one.attrs
        )
        for name, one in module.functions_items()
        if isinstance(one, relax.Function)
    }
    if not made:
        return module
    written = builder.get()
    for name, function in functions.items():
        written.update_func(written.get_global_var(name.name_hint), function)
    done: tvm.IRModule = relax.transform.DeadCodeElimination()(written)
    return done


def _spreads(call: Any) -> bool:
    """Whether a kernel reads a variable that has fewer elements than its result, and more than one."""
    fields = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
    made = shape_of(call.ty_args[0])
    if made is None:
        return False
    sizes = [math.prod(shape) for one in fields if isinstance(one, relax.DataflowVar) and (shape := shape_of(one.ty))]
    return any(1 < size < math.prod(made) for size in sizes)
