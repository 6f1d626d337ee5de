"""Half precision: what computes in it, and why its sums stay finite and near to those in single precision.

Convolutions and dense layers read half precision (`mixed`). Their weights are scaled for each output channel
(`scaled`), so that the sum of a block of products is never greater than the greatest number that is multiplied; such a
block is summed in half precision, and the blocks in single (`blocks`).
"""

from __future__ import annotations

import tvm
from tvm import relax

from toolchain.backends.mali.half.blocks import in_blocks, marked
from toolchain.backends.mali.half.mixed import mixed
from toolchain.backends.mali.half.scaled import scaled

__all__ = ["halved", "in_blocks"]


def halved(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module as calls of kernels that compute in half precision, and say which sums may be in it.

    Args:
        module: Operators of Relax, and calls of kernels; its inputs and outputs keep their types.
    """
    legal = [relax.transform.FoldConstant(), relax.transform.LegalizeOps()]
    return marked(tvm.transform.Sequential(legal)(scaled(mixed(module))))
