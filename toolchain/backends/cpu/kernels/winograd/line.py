"""The linear algebra of Winograd convolution along one line, F(m, r), for any points in pairs of both signs.

Products of polynomials are evaluated at points and interpolated; transposed, that is a convolution (Toom and Cook).
With an even number of components, one of the points is infinity. Points p and -p share the work: the even powers give
the same for both, and the odd ones the opposite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.winograd.algebra import POINT

# For each number of components, what the points are beside 0 and infinity. Other points make larger errors: of sums of
# 768 products those of F(4, 4) are 3.5e-6 of the largest, those of F(4, 3) 1.7e-6, and those of direct sums 1.9e-6.
_POINTS = {6: (POINT, 2 * POINT), 7: (0.6, 1.0, 1.5)}

_NOTHING = 1e-12  # what rounding leaves of a coefficient that is zero


@dataclass(frozen=True)
class Line:
    """The transforms for tiles of some results and filters of some taps.

    Attributes:
        results: Results of a tile.
        taps: Taps of the filter.
    """

    results: int
    taps: int

    @property
    def components(self) -> int:
        """Elements of a transformed tile."""
        return self.results + self.taps - 1

    @property
    def _has_infinity(self) -> bool:
        return self.components % 2 == 0

    @property
    def points(self) -> tuple[float, ...]:
        """The points but infinity: 0, then pairs."""
        return (0.0, *(sign * point for point in _POINTS[self.components] for sign in (1, -1)))

    @cached_property
    def filters(self) -> NDArray[np.float64]:
        """The transform of filters, [components, taps]."""
        rows = [
            [
                point**power / np.prod([point - other for other in self.points if other != point])
                for power in range(self.taps)
            ]
            for point in self.points
        ]
        return np.array([*rows, *([[0.0] * (self.taps - 1) + [1.0]] if self._has_infinity else [])])

    def inputs(self, data: Sequence[Any], lanes: int) -> list[Any]:
        """Write the transform of `components` input vectors."""
        points = self.points
        values = [_sum(data, _coefficients(points[1:]), lanes)]
        for index in range(1, len(points), 2):
            row = _coefficients([point for point in points if point != points[index]])
            even = _sum(data, [number * (power % 2 == 0) for power, number in enumerate(row)], lanes)
            odd = _sum(data, [number * (power % 2) for power, number in enumerate(row)], lanes)
            values += [T.Bind(even + odd), T.Bind(even - odd)]
        return [*values, *([_sum(data, _coefficients(points), lanes)] if self._has_infinity else [])]

    def outputs(self, products: Sequence[Any], lanes: int) -> list[Any]:
        """Write the transform of `components` products to results."""
        pairs = [(products[index], products[index + 1]) for index in range(1, len(self.points), 2)]
        even, odd = [T.Bind(a + b) for a, b in pairs], [T.Bind(a - b) for a, b in pairs]
        results = []
        for power in range(self.results):
            factors = [point**power for point in self.points[1::2]]
            terms, weights = [*(odd if power % 2 else even)], [*factors]
            if power == 0:
                terms, weights = [products[0], *terms], [1.0, *weights]
            if power == self.results - 1 and self._has_infinity:
                terms, weights = [products[-1], *terms], [1.0, *weights]
            results.append(_sum(terms, weights, lanes))
        return results


def _coefficients(roots: Sequence[float]) -> list[float]:
    """Return the coefficients of the polynomial with these roots, that of the least power first."""
    return [float(number) for number in np.poly(roots)[::-1]]


def _sum(terms: Sequence[Any], factors: Sequence[float], lanes: int) -> Any:
    """Write a sum of products with numbers; nothing for those with zero."""
    total = None
    for term, factor in zip(terms, factors, strict=False):
        if abs(factor) < _NOTHING:
            continue
        product = term if factor == 1 else term * emit.splat(factor, lanes)
        total = product if total is None else total + product
    return T.Bind(total)
