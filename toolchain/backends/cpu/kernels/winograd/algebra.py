"""The linear algebra of Winograd convolution F(m x m, 3 x 3): its transforms, as code and as numpy.

A tile of m x m results needs (m + 2) x (m + 2) inputs: Y = A' [(G w G') * (B' d B)] A with ' for transposition and *
element by element (Lavin and Gray, "Fast algorithms for convolutional neural networks", arXiv:1509.09308). The
matrices follow from the points at which polynomials are evaluated. F(2x2) takes 0, 1, -1 and infinity; F(4x4) takes
0, +-1/sqrt(2), +-sqrt(2) and infinity, whose error is a quarter of that of the usual 0, +-1, +-2 and infinity, for a
few multiplications more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit

TAPS = 3
"""Height and width of the filters."""

ERRORS = {2: 3e-6, 4: 1e-5}
"""For each m: the largest error that is to be expected, as a share of the largest result; for up to 1024 channels.

Seen against double precision, with random data and 64 to 1024 channels: F(2x2) 3e-7 to 1.6e-6, F(4x4) 1.0e-6 to 6.1e-6,
direct convolution 6e-7 to 3.7e-6; it is the sum over the channels that counts most.
"""

POINT = 1 / math.sqrt(2)  # the other one is twice this; their squares are 1/2 and 2

_FILTERS: dict[int, list[list[float]]] = {
    2: [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
    4: [
        [1, 0, 0],
        [-2 / 3, -2 / 3 * POINT, -1 / 3],
        [-2 / 3, 2 / 3 * POINT, -1 / 3],
        [1 / 6, 1 / 3 * POINT, 1 / 3],
        [1 / 6, -1 / 3 * POINT, 1 / 3],
        [0, 0, 1],
    ],
}


def filters(weights: NDArray[Any], tile: int) -> NDArray[Any]:
    """Transform weights [out, in, 3, 3] in double precision.

    Returns:
        [components, out, in]; component `column * (tile + 2) + row`.
    """
    matrix = np.array(_FILTERS[tile])
    outputs, inputs, _, _ = weights.shape
    taps = weights.transpose(3, 2, 0, 1).reshape(TAPS**2, -1).astype(np.float64)
    # One product of matrices for rows and columns together: einsum rearranges the weights of a layer several times.
    components: NDArray[np.float64] = (np.kron(matrix, matrix) @ taps).reshape(-1, outputs, inputs)
    return components


def filter_factors(tile: int) -> list[list[float]]:
    """Return the transform of filters, [components of a column or row, taps]."""
    return [[float(number) for number in row] for row in _FILTERS[tile]]


def filter_rows(w: Sequence[Any], tile: int, lanes: int) -> list[Any]:
    """Write the transform of one row or column of 3 vectors of weights."""

    def c(number: float) -> Any:
        return emit.splat(number, lanes)

    if tile == 2:  # noqa: PLR2004 - F(2x2)
        middle, other = T.Bind(c(0.5) * (w[0] + w[2])), T.Bind(c(0.5) * w[1])
        return [w[0], T.Bind(middle + other), T.Bind(middle - other), w[2]]
    odd = T.Bind(c(2 / 3 * POINT) * w[1])
    half = T.Bind(c(0.5) * odd)
    inner = T.Bind(c(-2 / 3) * w[0] - c(1 / 3) * w[2])
    outer = T.Bind(c(1 / 6) * w[0] + c(1 / 3) * w[2])
    rows = (inner - odd, inner + odd, outer + half, outer - half)
    return [w[0], *[T.Bind(value) for value in rows], w[2]]


def inputs(d: Sequence[Any], lanes: int) -> list[Any]:
    """Write the transform of one row or column of m + 2 input vectors."""

    def c(number: float) -> Any:
        return emit.splat(number, lanes, emit.element_type(d[0]))

    if len(d) == 4:  # noqa: PLR2004 - F(2x2)
        return [T.Bind(value) for value in (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3])]
    inner_even, inner_odd = T.Bind(d[4] - c(2) * d[2]), T.Bind(c(POINT) * (d[3] - c(2) * d[1]))
    outer_even, outer_odd = T.Bind(d[4] - c(0.5) * d[2]), T.Bind(c(2 * POINT) * (d[3] - c(0.5) * d[1]))
    rows = (
        d[0] + d[4] - c(2.5) * d[2],
        inner_even + inner_odd,
        inner_even - inner_odd,
        outer_even + outer_odd,
        outer_even - outer_odd,
        d[1] + d[5] - c(2.5) * d[3],
    )
    return [T.Bind(value) for value in rows]


def outputs(m: Sequence[Any], lanes: int) -> list[Any]:
    """Write the transform of one row or column of m + 2 products to m results."""

    def c(number: float) -> Any:
        return emit.splat(number, lanes, emit.element_type(m[0]))

    inner, inner_odd = T.Bind(m[1] + m[2]), T.Bind(m[1] - m[2])
    if len(m) == 4:  # noqa: PLR2004 - F(2x2)
        return [T.Bind(m[0] + inner), T.Bind(inner_odd - m[3])]
    outer, outer_odd = T.Bind(m[3] + m[4]), T.Bind(m[3] - m[4])
    rows = (
        m[0] + inner + outer,
        c(POINT) * (inner_odd + c(2) * outer_odd),
        c(0.5) * inner + c(2) * outer,
        m[5] + c(POINT / 2) * (inner_odd + c(8) * outer_odd),
    )
    return [T.Bind(value) for value in rows]


def input_gains(tile: int) -> NDArray[np.float64]:
    """Return how much larger than its inputs each component of a transformed row or column may be."""
    return np.array({2: [2, 2, 2, 2], 4: [4.5, *[3 + 3 * POINT] * 2, *[1.5 + 3 * POINT] * 2, 4.5]}[tile])


def output_gains(tile: int) -> NDArray[np.float64]:
    """Return the magnitudes of the transform of products, [results, components] of a row or column."""
    if tile == 2:  # noqa: PLR2004 - F(2x2)
        return np.array([[1, 1, 1, 0], [0, 1, 1, 1]])
    return np.array(
        [
            [1, 1, 1, 1, 1, 0],
            [0, POINT, POINT, 2 * POINT, 2 * POINT, 0],
            [0, 0.5, 0.5, 2, 2, 0],
            [0, POINT / 2, POINT / 2, 4 * POINT, 4 * POINT, 1],
        ]
    )
