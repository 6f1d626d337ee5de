"""A module with its function `main` written anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

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
