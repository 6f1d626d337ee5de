"""How great a sum of products in half precision can be, from the weights alone.

Numbers of half precision are 65504 at most. A sum of some products x * w is not greater than the greatest |x| times the
sum of all |w|: where that is below 1, no sum of such products can overflow, whatever the finite x are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PRODUCTS = 32
"""How many products are summed in half precision at most."""

# Each of 32 additions rounds by 2 ** -11 at most, so that a sum of them is below 0.9 * (1 + 2 ** -11) ** 32 = 0.92.
LIMIT = 0.9
# The same of weights that were rounded to half precision since, by 2 ** -11 at most.
ROUNDED = LIMIT * (1 + 2**-11)

_EXPONENT = 100  # beyond that, single precision ends soon, too


def greatest(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return for each row the sum of its greatest magnitudes, as many as are summed at most.

    Args:
        rows: Weights, [output channel, all that it is summed over].
    """
    size = np.abs(rows.astype(np.float64))
    # Any products may meet in a block, so that the greatest weights of a row bound its sum.
    if size.shape[1] > PRODUCTS:
        size = np.partition(size, -PRODUCTS, axis=1)[:, -PRODUCTS:]
    sums: NDArray[np.float64] = size.sum(axis=1)
    return sums


def exponents(rows: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return for each row the power of two that brings what `greatest` says near to `LIMIT`, and not above it.

    Larger weights would overflow, and products of smaller ones lose digits at the lower end of half precision.
    """
    sums = greatest(rows)
    usable = np.isfinite(sums) & (sums > 0)
    powers = np.floor(np.log2(LIMIT / np.where(usable, sums, LIMIT))).astype(np.int64)
    return np.clip(powers, -_EXPONENT, _EXPONENT)
