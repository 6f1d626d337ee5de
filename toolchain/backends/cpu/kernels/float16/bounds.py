"""Weights whose sums of products stay finite in float16, however large the data is.

Before a sum of products reaches its end, it may be greater than all that it is made of, and beyond float16, where
float32 would have gone on. So the weights of each output are multiplied by a power of two, such that their magnitudes
in any block that is summed in float16 add up to less than 1: no sum of a block is then greater than the greatest number
that is multiplied. The kernel divides by the same power in the end. That also keeps the products of small weights away
from the subnormal numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import BuildError

MOST_IN_CHAIN = 128
"""Products that are summed one after the other: each sum is rounded to 11 bits."""

MOST_PRODUCTS = 512
"""Products whose sum is in float16: sums of some chains, which are few, so that they lose little."""

MOST_OF_ROW = 256
"""Products of a row of a filter, which is never divided."""

# Sums are rounded: the last one of a chain of 256 may be (1 + 2^-11)^256 = 1.13 times what it is exactly.
_GREATEST_SUM = 0.85
_POWERS = (-15, 14)  # of two, by which weights are multiplied: those by which the kernel divides are float16's


def powers(sums: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the powers of two for outputs.

    Args:
        sums: Sums of magnitudes of the weights of a block, the greatest of each output.

    Raises:
        BuildError: Weights are too large.
    """
    finite = np.where(np.isfinite(sums), sums, 0)  # what is infinite in the file stays so
    with np.errstate(divide="ignore"):
        exact = np.floor(np.log2(_GREATEST_SUM / finite))
    if (exact < _POWERS[0]).any():
        raise BuildError(
            f"a layer has weights whose magnitudes add up to {finite.max():.3g}: too much for half precision",
            hint="leave --float16 out",
        )
    return np.where(finite == 0, 0, np.minimum(exact, _POWERS[1])).astype(np.int32)


def packed(weights: NDArray[np.float32], exponents: NDArray[np.int32], outputs: int) -> NDArray[np.float16]:
    """Return weights as a kernel reads them, and behind them the factor of each output that takes the power back.

    Args:
        weights: Weights in the kernel's order.
        exponents: Powers of two of the outputs, in a shape that goes with the weights.
        outputs: Outputs that have a factor.
    """
    scaled = np.ldexp(weights, exponents).astype(np.float16)
    factors = np.ldexp(np.float32(1), -exponents.reshape(-1)[:outputs]).astype(np.float16)
    return np.concatenate([scaled.reshape(-1), factors])
