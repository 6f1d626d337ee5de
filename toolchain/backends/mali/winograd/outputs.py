"""The products of a Winograd convolution and the transform of its results, as TE, and the schedule of that.

For each component, a matrix of tiles and channels is multiplied by one of weights, which the rules for layers schedule.
The results are computed from the products in the kernel of what follows them, so that they need no kernel of their own.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import tvm
from tvm import s_tir, te, tirx

from toolchain.backends.mali.layers import extent_of
from toolchain.backends.mali.rewrite import contains, largest_divisor
from toolchain.backends.mali.winograd.tiling import LANES, OUTPUTS, Tiling

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


# --- the schedule ----------------------------------------------------------------------------------------------------

_GROUP = 64  # most work-items of a work-group
_ROWS = {2: 2, 4: 1}
"""Rows of a tile that a work-item computes, by the size of tiles: two of four pixels each would be spilled."""


def schedule_outputs(module: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered Relax module whose transforms of products are scheduled; there is nothing to search for."""
    changed = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and contains(
            function.body, s_tir.SBlock, lambda block: str(block.name_hint) == RESULTS
        ):
            changed.update_func(variable, _schedule(function).with_attrs({"tirx.is_scheduled": True}))
    return changed


def _schedule(function: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    names = {str(schedule.get(block).name_hint): block for block in blocks}
    columns, results = names.pop(COLUMNS), names.pop(RESULTS)
    *before, last = names.values()
    for block in before:
        schedule.compute_inline(block)
    size = extent_of(schedule, schedule.get_loops(results)[3])
    items = _spread(schedule, last, size)
    schedule.compute_at(results, items, preserve_unit_loops=True)
    *tile, component = schedule.get_loops(results)[-7:]
    schedule.reorder(component, *tile)
    schedule.compute_at(columns, component, preserve_unit_loops=True)
    for block in (columns, results):
        schedule.set_scope(block, 0, "local")
        *outer, lanes = schedule.get_loops(block)[-6:]
        for loop in outer:
            schedule.unroll(loop)
        schedule.vectorize(lanes)
    schedule.unroll(component)
    schedule.decompose_reduction(results, component)
    return schedule.mod["main"]


def _spread(schedule: s_tir.Schedule, block: Any, size: int) -> Any:
    """Give each work-item its part of a tile; returns the loop over the work-items of a group."""
    images, height, width, channels = schedule.get_loops(block)
    down, row_group, row = schedule.split(height, [None, size // _ROWS[size], _ROWS[size]])
    across, column = schedule.split(width, [None, size])
    blocks, lanes = schedule.split(channels, [None, LANES])
    deep = largest_divisor(extent_of(schedule, blocks), _GROUP // 4)
    wide = largest_divisor(extent_of(schedule, across), _GROUP // deep)
    across, tiles = schedule.split(across, [None, wide])
    blocks, items = schedule.split(blocks, [None, deep])
    schedule.reorder(images, down, row_group, across, blocks, tiles, items, row, column, lanes)
    schedule.bind(schedule.fuse(images, down, row_group), "blockIdx.z")
    for loop, axis in ((across, "blockIdx.y"), (blocks, "blockIdx.x"), (tiles, "threadIdx.y"), (items, "threadIdx.x")):
        schedule.bind(loop, axis)
    schedule.unroll(row)
    schedule.unroll(column)
    schedule.vectorize(lanes)
    return items
