"""Images of three or four channels, as the first convolution of a network reads them: padded, with four channels.

Three channels are no vector. Read one by one they are three loads a pixel, and a convolution that pads asks for each
whether it is within. So one kernel transposes, pads, and adds a channel of zeros; the convolution then reads a vector a
pixel, a few pixels one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.mali import scripted

LANES = 4
_GROUP = 64  # most work-items of a work-group


def suits(channels: int) -> bool:
    """Whether images of so many channels are padded to four."""
    return LANES - 1 <= channels <= LANES


def shape(image: Sequence[int], padding: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the shape of what the kernel writes: [n, h, w, 4] with the padding."""
    batch, _, height, width = image
    top, left, below, right = padding
    return batch, height + top + below, width + left + right, LANES


def kernel(image: Sequence[int], padding: Sequence[int]) -> tirx.PrimFunc:
    """Write the kernel.

    Args:
        image: Shape of the image [n, c, h, w]; c is three or four.
        padding: Zeros above, to the left, below, to the right.
    """
    padded = shape(image, padding)

    def body(source: Any, result: Any) -> None:
        batch, height, width, _ = padded
        wide = scripted.largest_divisor(width, _GROUP)
        with scripted.launch(group_z=batch, group_y=height, group_x=width // wide, item_x=wide) as (n, row, x, item):
            column = x * wide + item
            pixel, lanes = T.alloc_buffer((LANES,), "float32", scope="local"), tirx.Ramp(0, 1, LANES)
            for channel, value in enumerate(_pixel(source, n, row - padding[0], column - padding[1])):
                T.buffer_store(pixel, value, [channel])
            T.buffer_store(result, pixel[lanes], [n, row, column, lanes])

    return scripted.write_kernel("first_image", {"image": image, "padded": padded}, body)


def _pixel(image: Any, number: Any, row: Any, column: Any) -> list[Any]:
    """Return the channels of a pixel; outside of the image, and beyond its channels, there are zeros."""
    _, channels, height, width = (int(size) for size in image.shape)
    zero = tirx.const(0.0, "float32")
    inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
    read = [tirx.if_then_else(inside, image[number, channel, row, column], zero) for channel in range(channels)]
    return read + [zero] * (LANES - channels)


def weights(array: NDArray[Any]) -> NDArray[Any]:
    """Return weights [h, w, in, out] with zeros for the channels that are added."""
    return np.pad(array, [(0, 0), (0, 0), (0, LANES - array.shape[2]), (0, 0)])
