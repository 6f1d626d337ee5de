"""The products of a Winograd convolution, and the transform of its results, as TE.

For each component, a matrix of tiles and channels is multiplied by one of weights, which the rules for layers schedule.
The results are computed from the products in the kernel of what follows them, so that they need no kernel of their own.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from tvm import te, tirx

from toolchain.backends.mali.winograd.tiling import OUTPUTS, Tiling

COLUMNS, RESULTS = "winograd_columns", "winograd_results"
"""Blocks of the transform: columns of products, and results of those."""


def multiply(components: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """Multiply components [component, tile, in] by weights [component, in, out]: [component, tile, out]."""
    count, tiles, inputs = components.shape
    channel = te.reduce_axis((0, inputs), "channel")

    def product(component: Any, tile: Any, out: Any) -> Any:
        return te.sum(components[component, tile, channel] * weights[component, channel, out], axis=channel)

    return te.compute((count, tiles, weights.shape[2]), product, "winograd_products")


def results(products: te.Tensor, tiling: Tiling) -> te.Tensor:
    """Transform products [component, tile, out] to results [n, h, w, out]."""
    size, side, outputs = tiling.size, tiling.side, tiling.outputs
    images, down, across = tiling.image[0], tiling.down, tiling.across
    matrix = OUTPUTS[size]

    def column(*indices: Any) -> Any:
        image, row, tile_column, within, component, out = indices
        tile = (image * down + row) * across + tile_column
        # The first product counts for the first result alone, and the last for the last: they are read in turns.
        ends = within // (size // 2) * (side - 1)
        component_rows = [ends, *range(1, side - 1)]
        counts = [[line[0] + line[-1], *line[1:-1]] for line in matrix]
        read = [products[component_row * side + component, tile, out] for component_row in component_rows]
        return functools.reduce(
            operator.add,
            [_number([line[number] for line in counts], within) * product for number, product in enumerate(read)],
        )

    columns = te.compute((images, down, across, size, side, outputs), column, COLUMNS)
    component = te.reduce_axis((0, side), "component")

    def result(*indices: Any) -> Any:
        *tile, within, out = indices
        return te.sum(_of_matrix(matrix, within, component) * columns(*tile, component, out), axis=component)

    tiles = te.compute((images, down, across, size, size, outputs), result, RESULTS)
    return te.compute(
        (images, tiling.height, tiling.width, outputs),
        lambda n, h, w, c: tiles[n, h // size, w // size, h % size, w % size, c],
        "winograd",
    )


def _number(values: list[float], which: Any) -> Any:
    """Return the number that an index chooses, as nested selections."""
    selected = tirx.const(values[-1], "float32")
    for number, value in reversed(list(enumerate(values[:-1]))):
        selected = tirx.Select(which == number, tirx.const(value, "float32"), selected)
    return selected


def _of_matrix(matrix: Any, row: Any, column: Any) -> Any:
    selected = _number(list(matrix[-1]), column)
    for number, line in reversed(list(enumerate(matrix[:-1]))):
        selected = tirx.Select(row == number, _number(list(line), column), selected)
    return selected
