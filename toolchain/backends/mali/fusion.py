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


def fuse_operators(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module of operators as calls of fused kernels."""
    transform = relax.transform
    legal = tvm.transform.Sequential([transform.LegalizeOps(), transform.AnnotateTIROpPattern()])(module)
    return fusion.fuse(transform.FoldConstant()(_set_apart(legal)))


def _set_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Give calls that spread what another kernel made a kernel of their own, which is not fused with that."""
    builder = relax.BlockBuilder(module)
    separate: dict[Any, Any] = {}

    def changed(call: Any) -> Any:
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.call_tir" or not _spreads(call):
            return call
        name, *others = call.args
        kernel = module[name]
        if int((kernel.attrs or {}).get(_PATTERN, _INJECTIVE)) >= _INJECTIVE:
            return call
        if name not in separate:
            separate[name] = builder.add_func(kernel.with_attr(_PATTERN, _INJECTIVE), name.name_hint)
        return relax.Call(call.op, [separate[name], *others], call.attrs, call.ty_args)

    functions = {
        name: relax.Function(
            function.params,
            tvm_ffi.structural_map(function.body, (relax.Call, changed)),
            function.ret_ty,
            function.is_pure,
            function.attrs,
        )
        for name, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    if not separate:
        return module
    rebuilt = builder.get()
    for name, function in functions.items():
        rebuilt.update_func(rebuilt.get_global_var(name.name_hint), function)
    cleaned: tvm.IRModule = relax.transform.DeadCodeElimination()(rebuilt)
    return cleaned


def _spreads(call: Any) -> bool:
    """Whether a kernel reads a variable that has fewer elements than its result, and more than one."""
    fields = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
    result = shape_of(call.ty_args[0])
    if result is None:
        return False
    sizes = [
        math.prod(shape) for field in fields if isinstance(field, relax.DataflowVar) and (shape := shape_of(field.ty))
    ]
    return any(1 < size < math.prod(result) for size in sizes)
