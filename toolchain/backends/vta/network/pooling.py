"""Maxima that follow a layer: they are taken of its sums, since a shift and bounds keep the order of numbers.

With a stride, that costs the array no more than to shift and bound all sums, fewer results are written to memory, and
the CPU has nothing to do. Maxima with a stride of 1 are left to the CPU, whose vectors take 16 bytes as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolchain.backends.graph.values import Operation, Value, four, pair
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.codegen.tilings import MOST_PADDING
from toolchain.backends.vta.network.requantize import Readers, UnfitError, grid, is_dequantize, is_quantize

_POOL = "nn.max_pool2d"


def fuse_pool(layer: Conv2d, end: Operation, readers: Readers) -> tuple[Conv2d, Operation]:
    """Return a layer with the maxima that alone read it, and the operation that makes int8 of them.

    Without such maxima, both are returned as they are.

    Args:
        layer: The layer.
        end: The operation that makes int8 of its results.
        readers: The operations that read each value.
    """
    match = _find_pool(end, readers)
    if match is None or layer.residual_shift is not None:
        return layer, end
    pool, last = match
    attributes = pool.attributes
    window, stride, edges = pair(attributes.pool_size), pair(attributes.strides), four(attributes.padding)
    is_nchw = (str(attributes.layout), str(attributes.out_layout)) == ("NCHW", "NCHW")
    if not is_nchw or pair(attributes.dilation) != (1, 1) or stride == (1, 1):
        return layer, end
    pooled_layer = _with_pool(layer, window, stride, edges, (pool.out.shape or ())[2:])
    return (layer, end) if pooled_layer is None else (pooled_layer, last)


def _find_pool(end: Operation, readers: Readers) -> tuple[Operation, Operation] | None:
    """Return the maxima that alone read a layer's result, and the `quantize` behind them on the same grid."""
    numbers = _only_reader(end.out, readers)
    pool = _only_reader(numbers.out, readers) if numbers is not None and is_dequantize(numbers) else None
    last = _only_reader(pool.out, readers) if pool is not None and pool.name == _POOL else None
    if numbers is None or pool is None or last is None or not is_quantize(last):
        return None
    try:
        same = grid(end, "") == grid(numbers, "") == grid(last, "")
    except UnfitError:
        return None
    return (pool, last) if same else None


def _only_reader(value: Value, readers: Readers) -> Operation | None:
    return readers[value][0] if value.is_alone and readers[value] else None


def _with_pool(
    layer: Conv2d, window: tuple[int, int], stride: tuple[int, int], edges: Sequence[int], out_size: Sequence[int]
) -> Conv2d | None:
    """Return a layer with maxima; None if the position that must never be outside may be outside for some window."""
    rows, columns = layer.out_height, layer.out_width
    before, behind = (edges[0], edges[1]), list[int]()
    for size, extent, by, start, count in zip((rows, columns), window, stride, before, out_size, strict=True):
        if start >= extent or (count - 1) * by >= size:
            return None
        behind.append(max(0, (count - 1) * by + extent - start - size))
    outside = (*before, *behind)
    padding = (
        layer.padding[0] + outside[0] * layer.stride[0],
        layer.padding[1] + outside[1] * layer.stride[1],
        layer.padding[2] + outside[2] * layer.stride[0],
        layer.padding[3] + outside[3] * layer.stride[1],
    )
    pooled = replace(
        layer, padding=padding, pool=Pool(window, stride, (outside[0], outside[1], outside[2], outside[3]))
    )
    fits = max(padding) <= MOST_PADDING and (pooled.out_height, pooled.out_width) == tuple(out_size)
    return pooled if fits else None
