"""A module with its function `main` written anew, and its constants folded but for bytes that layers read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.graph import fold
from toolchain.backends.graph.values import name_of

ENTRY = "main"


def with_blocks(main: relax.Function, rewritten: Callable[[Any], Any], more: Sequence[Any] = ()) -> relax.Function:
    """Return a function with each block rewritten, and with parameters behind its own."""
    body = relax.SeqExpr([rewritten(block) for block in main.body.blocks], main.body.body)
    return relax.Function([*main.params, *more], body, main.ret_ty, main.is_pure, main.attrs)


def with_main(module: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    """Return a module with another function `main`."""
    functions = {**dict(module.functions_items()), module.get_global_var(ENTRY): main}
    return with_functions(module, functions)


def with_functions(module: tvm.IRModule, functions: dict[Any, Any]) -> tvm.IRModule:
    """Return a module with other functions."""
    result: tvm.IRModule = relax.transform.Normalize()(tvm.IRModule(functions, module.attrs, module.global_infos))
    return result


# --- folded constants ------------------------------------------------------------------------------------------------

_ROUNDINGS = frozenset({"quantize", "dequantize"})
_CHANGES = frozenset({"reshape", "permute_dims", "dequantize"})  # what may stand between bytes and their layer
_LAYERS = frozenset({"nn.conv2d", "matmul", "add", "subtract", "multiply", "divide"})


def fold_except_bytes(module: tvm.IRModule) -> tvm.IRModule:
    """Fold constants, but not bytes that layers read: these are parameters during the folding.

    Args:
        module: A module whose weights are constants; only its function `main` is rewritten.
    """
    main, hidden = module[ENTRY], dict[Any, Any]()
    readers: dict[Any, list[Any]] = defaultdict(list)
    constants: set[Any] = set()
    for block in main.body.blocks:
        for binding in block.bindings:
            free = relax.analysis.free_vars(binding.value)
            for variable in free:
                readers[variable].append(binding)
            if constants.issuperset(free):
                constants.add(binding.var)

    def hide(binding: Any) -> Any:
        call = binding.value
        rounds_constant = name_of(call) in _ROUNDINGS and isinstance(call.args[0], tvm.ir.GenericConst)
        # A single number is a scale or a limit, and no weights.
        if not rounds_constant or call.args[0].value.numpy().size <= 1:
            return binding
        if not _is_of_layers(binding.var, readers, constants):
            return binding
        parameter = relax.Var(f"held{len(hidden)}", call.args[0].ty)
        hidden[parameter] = call.args[0].value
        return relax.VarBinding(binding.var, relax.Call(call.op, [parameter, *call.args[1:]], call.attrs, call.ty_args))

    body = with_blocks(main, lambda block: type(block)([hide(binding) for binding in block.bindings]))
    if not hidden:
        return fold.fold_constants(module)
    # As parameters they are unknown to the folding; bound again, they are constants as before.
    folded = fold.fold_constants(with_main(module, with_blocks(body, lambda block: block, [*hidden])))
    closed: tvm.IRModule = relax.transform.BindParams(ENTRY, hidden)(folded)
    return closed


def _is_of_layers(variable: Any, readers: dict[Any, list[Any]], constants: set[Any]) -> bool:
    """Whether only layers with data that is not constant read a variable, directly or through a change of its shape."""
    names = [(name_of(binding.value), binding.var) for binding in readers[variable]]
    return isinstance(variable, relax.DataflowVar) and all(
        (name in _LAYERS and result not in constants)
        or (name in _CHANGES and _is_of_layers(result, readers, constants))
        for name, result in names
    )
