"""Kernels that no rule has spread over work-items: the CPU would run them, on memory that is the GPU's."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from toolchain.errors import InputError


def require_thread_bindings(module: tvm.IRModule) -> None:
    """Refuse a module with a kernel that the GPU would not run.

    Args:
        module: Scheduled kernels.

    Raises:
        InputError: There is one; it is named.
    """
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and not _is_launched(function):
            raise InputError(
                f"{name.name_hint} cannot be compiled for a GPU",
                details="its steps depend on each other, and the GPU compiler cannot keep their order",
                hint="deploy it on the CPU: a board of the same machine with the `cpu` backend",
            )


def _is_launched(function: tirx.PrimFunc) -> bool:
    bindings: list[Any] = []

    def visit_loop(loop: Any) -> None:
        if loop.thread_binding is not None:
            bindings.append(loop)

    def visit_attribute(attribute: Any) -> None:
        if attribute.attr_key == "thread_extent":
            bindings.append(attribute)

    tvm_ffi.structural_walk(function.body, [(tirx.For, visit_loop), (tirx.AttrStmt, visit_attribute)])
    return bool(bindings)
