"""Half precision: what computes in it, and why its sums stay finite.

Convolutions and dense layers read half precision, and sum up in single; what follows the last of them is in single
(`mixed_precision`). Where sums in half precision are asked for, weights are scaled for each output channel
(`weight_scales`), so that the sum of a block of products is never greater than the greatest number that is multiplied;
such a block is summed in half precision, and the blocks in single (`blocks`). That saves arithmetic and loses digits:
of sums that cancel, and of small activations, whose products end below half precision. Where the inputs that a model
is built with make a layer read such, it is given greater ones (`activation_ranges`). How far all that is off is seen on
this machine's CPU (`use_plain_loops`).
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from toolchain.backends.mali.half.activation_ranges import rescale_layers
from toolchain.backends.mali.half.blocks import mark_bounded, sum_in_blocks, summary
from toolchain.backends.mali.half.mixed_precision import keep_tail_single, to_mixed_precision
from toolchain.backends.mali.half.weight_scales import scale_weights
from toolchain.backends.mali.rewrite import contains, map_kernels
from toolchain.errors import InputError

__all__ = ["rescale_layers", "sum_in_blocks", "summary", "to_half", "use_plain_loops"]


def to_half(module: tvm.IRModule, *, sums: bool = False) -> tvm.IRModule:
    """Return a Relax module as calls of kernels that compute in half precision.

    Args:
        module: Operators of Relax, and calls of kernels; its inputs and outputs keep their types.
        sums: Whether layers shall also sum up in it, where their weights can be scaled so that this cannot overflow.
            The kernels that may are marked.
    """
    legal = tvm.transform.Sequential([relax.transform.FoldConstant(), relax.transform.LegalizeOps()])
    in_half = keep_tail_single(to_mixed_precision(module))
    return mark_bounded(legal(scale_weights(in_half))) if sums else legal(in_half)


# --- on this machine's CPU -------------------------------------------------------------------------------------------

# A schedule binds loops to work-groups and work-items. One after the other, or side by side where they are work-groups,
# these give the same numbers, as long as each loop is whole in itself: that is so until TVM lowers a kernel. What a
# driver does beyond that is not in it: it may fuse a product and a sum, and has functions such as exp of its own.

_GROUPS = "blockIdx.x"
_BARRIER = "tirx.tvm_storage_sync"


def use_plain_loops(module: tvm.IRModule) -> tvm.IRModule:
    """Return a scheduled module whose kernels have no work-items, for a target of this machine's.

    Raises:
        InputError: A kernel has no schedule, but was written as work-items run it; it is named.
    """

    def change(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
        # A kernel written by hand numbers its work-items itself, or lets them wait for each other: loops do neither.
        numbers_items = contains(function.body, tirx.AttrStmt, lambda node: node.attr_key == "thread_extent")
        if numbers_items or contains(function.body, tvm.ir.Call, lambda call: getattr(call.op, "name", "") == _BARRIER):
            raise InputError(f"{name} is written for work-items of a GPU, which this machine does not have")
        return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, _unbind))).without_attr("target")

    return map_kernels(module, change)


def _unbind(loop: Any) -> Any:
    """Return a loop over work-groups as a parallel one, and one over work-items as a plain one."""
    if loop.kind != tirx.ForKind.THREAD_BINDING:
        return loop
    apart = loop.thread_binding.thread_tag == _GROUPS
    kind = tirx.ForKind.PARALLEL if apart else tirx.ForKind.SERIAL
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=loop.annotations)
