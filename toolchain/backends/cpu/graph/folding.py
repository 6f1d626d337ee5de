"""Compute ahead of time what follows from constants, but keep the weights of layers that are bytes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.cpu.graph.rewriting import ENTRY, with_blocks, with_main
from toolchain.backends.graph import fold
from toolchain.backends.graph.values import name_of

_ROUNDINGS = frozenset({"quantize", "dequantize"})
_CHANGES = frozenset({"reshape", "permute_dims", "dequantize"})  # what may stand between bytes and their layer
_LAYERS = frozenset({"nn.conv2d", "matmul", "add", "subtract", "multiply", "divide"})


def fold_except_bytes(module: tvm.IRModule) -> tvm.IRModule:
    """Fold constants as `fold.folded` does, but keep bytes that layers read: they are parameters during the folding.

    Args:
        module: A module whose weights are constants; only its function `main` is rewritten.
    """
    main, hidden = module[ENTRY], dict[Any, Any]()
    readers = _readers(main)
    constants = _known(main)

    def opened(binding: Any) -> Any:
        call = binding.value
        if not _is_rounding_of_constant(call) or not _is_of_layers(binding.var, readers, constants):
            return binding
        parameter = relax.Var(f"held{len(hidden)}", call.args[0].ty)
        hidden[parameter] = call.args[0].value
        return relax.VarBinding(binding.var, relax.Call(call.op, [parameter, *call.args[1:]], call.attrs, call.ty_args))

    body = with_blocks(main, lambda block: type(block)([opened(binding) for binding in block.bindings]))
    if not hidden:
        return fold.folded(module)
    folded = fold.folded(with_main(module, with_blocks(body, lambda block: block, [*hidden])))
    closed: tvm.IRModule = relax.transform.BindParams(ENTRY, hidden)(folded)
    return closed


def _readers(main: relax.Function) -> dict[Any, list[Any]]:
    """Return the bindings that read each variable."""
    readers: dict[Any, list[Any]] = defaultdict(list)
    for block in main.body.blocks:
        for binding in block.bindings:
            for variable in relax.analysis.free_vars(binding.value):
                readers[variable].append(binding)
    return readers


def _known(main: relax.Function) -> set[Any]:
    """Return the variables that follow from constants alone."""
    constants: set[Any] = set()
    for block in main.body.blocks:
        for binding in block.bindings:
            if constants.issuperset(relax.analysis.free_vars(binding.value)):
                constants.add(binding.var)
    return constants


def _is_rounding_of_constant(call: Any) -> bool:
    """Whether an expression makes several bytes of a constant, or numbers of them."""
    rounds_constant = name_of(call) in _ROUNDINGS and isinstance(call.args[0], tvm.ir.GenericConst)
    return rounds_constant and call.args[0].value.numpy().size > 1


def _is_of_layers(variable: Any, readers: dict[Any, list[Any]], constants: set[Any]) -> bool:
    """Whether only layers with data that is not constant read a variable, directly or through a change of its shape."""
    names = [(name_of(binding.value), binding.var) for binding in readers[variable]]
    return isinstance(variable, relax.DataflowVar) and all(
        (name in _LAYERS and result not in constants)
        or (name in _CHANGES and _is_of_layers(result, readers, constants))
        for name, result in names
    )
