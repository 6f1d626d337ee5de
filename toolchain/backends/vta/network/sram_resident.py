"""Tensors that only the array's kernels write and read: they need not leave its memory, and each call names them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.base.attributes import EXACT

RESIDENT = "vta_stays"
"""Attribute of a kernel's function: a bit for each of its tensors, in order, that may stay in the array's memory."""

_ENTRY = "main"
_CALL = "relax.call_tir"


def mark_resident(module: tvm.IRModule) -> tvm.IRModule:
    """Return a split network whose kernels say which of their tensors may stay in the array's memory.

    Args:
        module: The network, without dead code: a change of layout that nobody reads would count as a reader.
    """
    main = module[_ENTRY]
    resident = _resident_variables(module)
    if not resident:
        return module
    builder = relax.BlockBuilder(module)

    def mark(binding: Any) -> Any:
        if not _is_kernel(module, binding.value):
            return binding
        return relax.VarBinding(binding.var, _mark_call(binding, module, builder, resident))

    blocks = [type(block)([mark(binding) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    built = builder.get()
    functions = dict(built.functions_items())
    functions[built.get_global_var(_ENTRY)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    marked = tvm.IRModule(functions, module.attrs, module.global_infos)
    return tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.DeadCodeElimination()])(marked)


def _is_kernel(module: tvm.IRModule, call: Any) -> bool:
    """Whether a value is a call of one of the array's kernels."""
    if getattr(getattr(call, "op", None), "name", "") != _CALL:
        return False
    return EXACT in (module[call.args[0]].attrs or {})


def _resident_variables(module: tvm.IRModule) -> frozenset[Any]:
    """Return the variables that kernels write, and that only kernels read."""
    written, readers = set[Any](), defaultdict[Any, list[bool]](list)
    for block in module[_ENTRY].body.blocks:
        for binding in block.bindings:
            kernel = _is_kernel(module, binding.value)
            if kernel:
                written.add(binding.var)
            for variable in relax.analysis.free_vars(binding.value):
                readers[variable].append(kernel)
    # What the function returns has to be in DRAM at the end.
    results = set(relax.analysis.free_vars(module[_ENTRY].body.body))
    # A variable that is no DataflowVar may be read outside of its block.
    return frozenset(
        variable for variable in written - results if isinstance(variable, relax.DataflowVar) and all(readers[variable])
    )


def _mark_call(binding: Any, module: tvm.IRModule, builder: relax.BlockBuilder, resident: frozenset[Any]) -> Any:
    """Return a call of a kernel with an attribute for its resident tensors."""
    call = binding.value
    tensors = (*call.args[1].fields, binding.var)
    bits = sum(1 << position for position, tensor in enumerate(tensors) if tensor in resident)
    if not bits:
        return call
    marked = module[call.args[0]].with_attr(RESIDENT, str(bits))
    function = builder.add_func(marked, str(call.args[0].name_hint))
    return relax.op.call_tir(function, call.args[1], call.ty_args[0])


def resident_bits(attributes: Mapping[str, Any] | None) -> int:
    """Return the bits of a function's attribute; 0 without one."""
    return int(str((attributes or {}).get(RESIDENT, "0")))
