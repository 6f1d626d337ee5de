"""Maxima that follow a layer: its sums are made fewer before they are shifted and bounded, which keep their order.

Where maxima make them fewer, that costs the array no more than to shift and bound all of them, and neither are all
written to memory, nor is the CPU asked. Maxima of every place are left to the CPU, whose vectors take 16 bytes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolchain.backends.graph.values import Operation, Value, four, pair
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.codegen.tilings import MOST_PADDING
from toolchain.backends.vta.network.chains import Readers, UnfitError, grid, is_dequantize, is_quantize

_POOL = "nn.max_pool2d"


def pooled(layer: Conv2d, end: Operation, readers: Readers) -> tuple[Conv2d, Operation]:
    """Return a layer with the maxima that alone read it, and what makes int8 of them; or both as they are.

    Args:
        layer: The layer.
        end: The operation that makes int8 of its results.
        readers: Who reads what.
    """
    found = _reading(end, readers)
    if found is None or layer.residual_shift is not None:
        return layer, end
    pool, last = found
    how = pool.attributes
    window, stride, edges = pair(how.pool_size), pair(how.strides), four(how.padding)
    if pair(how.dilation) != (1, 1) or stride == (1, 1) or (str(how.layout), str(how.out_layout)) != ("NCHW", "NCHW"):
        return layer, end
    made = _with(layer, window, stride, edges, (pool.out.shape or ())[2:])
    return (layer, end) if made is None else (made, last)


def _reading(end: Operation, readers: Readers) -> tuple[Operation, Operation] | None:
    """Return the maxima that alone read what a layer makes, and what makes int8 of them on the same grid."""
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


def _with(
    layer: Conv2d, window: tuple[int, int], stride: tuple[int, int], edges: Sequence[int], made: Sequence[int]
) -> Conv2d | None:
    """Return a layer with maxima; None if a window may have nothing at the place that is never to be outside."""
    rows, columns = layer.out_height, layer.out_width
    before, behind = (edges[0], edges[1]), list[int]()
    for size, extent, by, start, count in zip((rows, columns), window, stride, before, made, strict=True):
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
    found = replace(layer, padding=padding, pool=Pool(window, stride, (outside[0], outside[1], outside[2], outside[3])))
    fits = max(padding) <= MOST_PADDING and (found.out_height, found.out_width) == tuple(made)
    return found if fits else None
