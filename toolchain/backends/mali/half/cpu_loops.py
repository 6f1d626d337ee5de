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

from toolchain.backends.mali.rewrite import contains, map_kernels
from toolchain.errors import InputError

_GROUPS = "blockIdx.x"
_BARRIER = "tirx.tvm_storage_sync"


def use_plain_loops(module: tvm.IRModule) -> tvm.IRModule:
    """Return a scheduled module whose kernels have no work-items, for a target of this machine's.

    Raises:
        InputError: A kernel has no schedule, but was written as work-items run it; it is named.
    """
    return map_kernels(module, _use_plain_loops)


def _use_plain_loops(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
    # A kernel written by hand numbers its work-items itself, or lets them wait for each other: loops do neither.
    numbers_items = contains(function.body, tirx.AttrStmt, lambda node: node.attr_key == "thread_extent")
    if numbers_items or contains(function.body, tvm.ir.Call, lambda call: getattr(call.op, "name", "") == _BARRIER):
        raise InputError(f"{name} is written for work-items of a GPU, which this machine does not have")
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, _unbind))).without_attr("target")


def _unbind(loop: Any) -> Any:
    """Return a loop over work-groups as a parallel one, and one over work-items as a plain one."""
    if loop.kind != tirx.ForKind.THREAD_BINDING:
        return loop
    apart = loop.thread_binding.thread_tag == _GROUPS
    kind = tirx.ForKind.PARALLEL if apart else tirx.ForKind.SERIAL
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=loop.annotations)
