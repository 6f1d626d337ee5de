"""What stands between the transforms of a Winograd convolution, and the transform of its results, as TE.

For each component, a matrix of tiles and channels is multiplied by one of weights: what the rules for layers know. The
results are computed of the products in the kernel of what follows them, which is why that is no kernel of its own.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from toolchain.backends.mali.winograd.tiling import OUTPUTS, Tiling

COLUMNS, RESULTS = "winograd_columns", "winograd_results"
"""Blocks of the transform: columns of products, and results of those."""


def multiplied(components: te.Tensor, weights: te.Tensor) -> te.Tensor:
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

    def column(*at: Any) -> Any:
        image, row, place, within, component, out = at
        tile = (image * down + row) * across + place
        # The first product counts for the first result alone, and the last for the last: they are read in turns.
        ends = within // (size // 2) * (side - 1)
        places = [ends, *range(1, side - 1)]
        counts = [[line[0] + line[-1], *line[1:-1]] for line in matrix]
        read = [products[place * side + component, tile, out] for place in places]
        return _sum([_number([of[number] for of in counts], within) * one for number, one in enumerate(read)])

    columns = te.compute((images, down, across, size, side, outputs), column, COLUMNS)
    component = te.reduce_axis((0, side), "component")

    def result(*at: Any) -> Any:
        *tile, within, out = at
        return te.sum(_of_matrix(matrix, within, component) * columns(*tile, component, out), axis=component)

    made = te.compute((images, down, across, size, size, outputs), result, RESULTS)
    return te.compute(
        (images, tiling.height, tiling.width, outputs),
        lambda n, h, w, c: made[n, h // size, w // size, h % size, w % size, c],
        "winograd",
    )


def _sum(terms: list[Any]) -> Any:
    """Add terms up."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _number(values: list[float], which: Any) -> Any:
    """Return the number that an index chooses."""
    found = tirx.const(values[-1], "float32")
    for number, value in reversed(list(enumerate(values[:-1]))):
        found = tirx.Select(which == number, tirx.const(value, "float32"), found)
    return found


def _of_matrix(matrix: Any, row: Any, column: Any) -> Any:
    found = _number(list(matrix[-1]), column)
    for number, line in reversed(list(enumerate(matrix[:-1]))):
        found = tirx.Select(row == number, _number(list(line), column), found)
    return found
