"""Scheduled kernels as this machine's CPU computes them: the same steps in the same order, and so the same rounding.

A schedule binds loops to work-groups and work-items. One after the other, or side by side where they are work-groups,
these give the same numbers, as long as each loop is whole in itself: that is so until TVM lowers a kernel. What a
driver does beyond that is not in it: it may fuse a product and a sum, and has functions such as exp of its own.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from toolchain.errors import InputError

_GROUPS = "blockIdx.x"


def use_plain_loops(module: tvm.IRModule) -> tvm.IRModule:
    """Return a scheduled module whose kernels have no work-items, for a target of this machine's.

    Raises:
        InputError: A kernel has no schedule, but was written as work-items run it; it is named.
    """
    functions = {
        variable: _serial(str(variable.name_hint), function) if isinstance(function, tirx.PrimFunc) else function
        for variable, function in module.functions_items()
    }
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _serial(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
    if _is_written(function):
        raise InputError(f"{name} is written for work-items of a GPU, which this machine does not have")
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, _turned))).without_attr("target")


def _is_written(function: tirx.PrimFunc) -> bool:
    """Whether a kernel numbers its work-items itself, or lets them wait for each other: loops do neither."""
    uses: list[Any] = []

    def visit_attribute(attribute: Any) -> None:
        if attribute.attr_key == "thread_extent":
            uses.append(attribute)

    def visit_call(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.tvm_storage_sync":
            uses.append(call)

    tvm_ffi.structural_walk(function.body, [(tirx.AttrStmt, visit_attribute), (tvm.ir.Call, visit_call)])
    return bool(uses)


def _turned(loop: Any) -> Any:
    """Return a loop of work-groups as one whose turns are independent, and one of work-items as a plain one."""
    if loop.kind != tirx.ForKind.THREAD_BINDING:
        return loop
    apart = loop.thread_binding.thread_tag == _GROUPS
    kind = tirx.ForKind.PARALLEL if apart else tirx.ForKind.SERIAL
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=loop.annotations)
