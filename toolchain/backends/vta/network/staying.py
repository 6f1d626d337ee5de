"""Tensors that kernels of the array alone write and read: they need not leave its memory, and each call says which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.base.attributes import EXACT

STAYS = "vta_stays"
"""Attribute of a kernel's function: a bit for each of its tensors, in order, that may stay in the array's memory."""

_ENTRY = "main"
_CALL = "relax.call_tir"


def with_staying(module: tvm.IRModule) -> tvm.IRModule:
    """Return a split network whose kernels say which of their tensors may stay in the array's memory.

    Args:
        module: The network, without dead code: a change of layout that nobody reads would count as a reader.
    """
    main = module[_ENTRY]
    inside = _inside(module)
    if not inside:
        return module
    builder = relax.BlockBuilder(module)
    blocks = [_rewritten(block, module, builder, inside) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    built = builder.get()
    functions = dict(built.functions_items())
    functions[built.get_global_var(_ENTRY)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    made = tvm.IRModule(functions, module.attrs, module.global_infos)
    return tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.DeadCodeElimination()])(made)


def _is_kernel(module: tvm.IRModule, call: Any) -> bool:
    """Whether a value is a call of one of the array's kernels."""
    if getattr(getattr(call, "op", None), "name", "") != _CALL:
        return False
    return EXACT in (module[call.args[0]].attrs or {})


def _inside(module: tvm.IRModule) -> frozenset[Any]:
    """Return the variables that kernels write, and that nothing but kernels reads."""
    made, read = set[Any](), defaultdict[Any, list[bool]](list)
    for block in module[_ENTRY].body.blocks:
        for binding in block.bindings:
            kernel = _is_kernel(module, binding.value)
            if kernel:
                made.add(binding.var)
            for variable in relax.analysis.free_vars(binding.value):
                read[variable].append(kernel)
    results = set(relax.analysis.free_vars(module[_ENTRY].body.body))
    return frozenset(one for one in made - results if isinstance(one, relax.DataflowVar) and all(read[one]))


def _rewritten(block: Any, module: tvm.IRModule, builder: relax.BlockBuilder, inside: frozenset[Any]) -> Any:
    bindings = [
        relax.VarBinding(one.var, _staying(one, module, builder, inside)) if _is_kernel(module, one.value) else one
        for one in block.bindings
    ]
    return type(block)(bindings)


def _staying(binding: Any, module: tvm.IRModule, builder: relax.BlockBuilder, inside: frozenset[Any]) -> Any:
    """Return a call of a kernel that says which of its tensors stay."""
    call = binding.value
    tensors = (*call.args[1].fields, binding.var)
    bits = sum(1 << place for place, one in enumerate(tensors) if one in inside)
    if not bits:
        return call
    said = module[call.args[0]].with_attr(STAYS, str(bits))
    function = builder.add_func(said, str(call.args[0].name_hint))
    return relax.op.call_tir(function, call.args[1], call.ty_args[0])


def stays(attributes: Mapping[str, Any] | None) -> int:
    """Return the bits that a function's attributes say; 0 where they say nothing."""
    return int(str((attributes or {}).get(STAYS, "0")))
