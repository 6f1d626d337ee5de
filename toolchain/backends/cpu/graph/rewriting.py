"""A module with its function `main` written anew, and its constants folded but for weights of few bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.graph import fold
from toolchain.backends.graph.kernels import packed_weights
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
_PRODUCTS = {
    "permute_dims": "matmul",
    "reshape": "nn.conv2d",
}  # what reads packed weights after a change of their shape
_LAYERS = frozenset({"nn.conv2d", "matmul", "add", "subtract", "multiply", "divide"})


def fold_except_weights(module: tvm.IRModule, *, in_bytes: bool = True) -> tvm.IRModule:
    """Fold constants, but not packed weights of products, nor bytes that layers read: these are parameters meanwhile.

    Args:
        module: A module whose weights are constants; only its function `main` is rewritten.
        in_bytes: Whether layers read bytes.
    """
    main, hidden = module[ENTRY], dict[Any, Any]()
    readers = _Readers(main)

    def hide(binding: Any) -> Any:
        call = binding.value
        packed = packed_weights(call, module)
        if packed is not None and readers.are_products(binding.var):
            numbers, *grid = call.args[1].fields
            return replaced(binding, numbers, lambda held: [call.args[0], relax.Tuple([held, *grid])])
        rounds_constant = name_of(call) in _ROUNDINGS and isinstance(call.args[0], tvm.ir.GenericConst)
        # A single number is a scale or a limit, and no weights.
        if not in_bytes or not rounds_constant or call.args[0].value.numpy().size <= 1:
            return binding
        if not readers.are_layers(binding.var):
            return binding
        return replaced(binding, call.args[0], lambda held: [held, *call.args[1:]])

    def replaced(binding: Any, constant: Any, arguments: Callable[[Any], list[Any]]) -> Any:
        call, parameter = binding.value, relax.Var(f"held{len(hidden)}", constant.ty)
        hidden[parameter] = constant.value
        return relax.VarBinding(binding.var, relax.Call(call.op, arguments(parameter), call.attrs, call.ty_args))

    body = with_blocks(main, lambda block: type(block)([hide(binding) for binding in block.bindings]))
    if not hidden:
        return fold.fold_constants(module)
    # As parameters they are unknown to the folding; bound again, they are constants as before.
    folded = fold.fold_constants(with_main(module, with_blocks(body, lambda block: block, [*hidden])))
    closed: tvm.IRModule = relax.transform.BindParams(ENTRY, hidden)(folded)
    return closed


class _Readers:
    """Which operations read the variables of a function."""

    def __init__(self, main: relax.Function) -> None:
        self._readers: dict[Any, list[Any]] = defaultdict(list)
        self._constants: set[Any] = set()
        for block in main.body.blocks:
            for binding in block.bindings:
                free = relax.analysis.free_vars(binding.value)
                for variable in free:
                    self._readers[variable].append(binding)
                if self._constants.issuperset(free):
                    self._constants.add(binding.var)

    def are_layers(self, variable: Any) -> bool:
        """Whether only layers with data that is not constant read it, directly or through a change of its shape."""
        return isinstance(variable, relax.DataflowVar) and all(
            (name_of(binding.value) in _LAYERS and binding.var not in self._constants)
            or (name_of(binding.value) in _CHANGES and self.are_layers(binding.var))
            for binding in self._readers[variable]
        )

    def are_products(self, variable: Any) -> bool:
        """Whether only products with data that is not constant read it: transposed, or as filters of 1x1."""
        return isinstance(variable, relax.DataflowVar) and all(
            name_of(change.value) in _PRODUCTS
            and isinstance(change.var, relax.DataflowVar)
            and all(
                name_of(product.value) == _PRODUCTS[name_of(change.value)]
                and product.value.args[1].same_as(change.var)
                and product.var not in self._constants
                for product in self._readers[change.var]
            )
            for change in self._readers[variable]
        )
