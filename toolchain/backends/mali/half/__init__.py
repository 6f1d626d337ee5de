"""Half precision: what computes in it, and why its sums stay finite.

Convolutions and dense layers read half precision, and sum up in single (`mixed`); what follows the last of them is in
single (`tail`). Where sums in half precision are asked for, weights are scaled for each output channel (`scaled`), so
that the sum of a block of products is never greater than the greatest number that is multiplied; such a block is summed
in half precision, and the blocks in single (`blocks`). That saves arithmetic and loses digits: of sums that cancel, and
of small activations, whose products end below half precision. Where the inputs that a model is built with make a layer
read such, it is given greater ones (`ranges`). How far all that is off is seen on this machine's CPU (`emulated`).
"""

from __future__ import annotations

import tvm
from tvm import relax

from toolchain.backends.mali.half.activation_ranges import rescale_layers
from toolchain.backends.mali.half.blocks import mark_bounded, sum_in_blocks, summary
from toolchain.backends.mali.half.cpu_loops import use_plain_loops
from toolchain.backends.mali.half.mixed_precision import to_mixed_precision
from toolchain.backends.mali.half.single_tail import keep_tail_single
from toolchain.backends.mali.half.weight_scales import scale_weights

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
