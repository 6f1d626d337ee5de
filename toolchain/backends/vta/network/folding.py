"""Images of few channels, as a first convolution with steps reads them: neighbouring pixels become channels.

A window that moves by two pixels over 3 channels becomes one that moves by one over 12, which fill a block nearly whole
where 3 leave 13 of its 16 places empty: a 7x7 window on 224x224 is a 4x4 one on 112x112 then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.values import shape_of
from toolchain.backends.vta.codegen.layers import Conv2d

Pair = tuple[int, int]


@dataclass(frozen=True)
class Folding:
    """Pixels that become channels.

    Attributes:
        step: Rows and columns of pixels that become the channels of one.
        before: Rows and columns of padding above and left of the image.
        size: Rows and columns of the folded image.
        window: Rows and columns of the window on it.
        fill: The byte around the image.
    """

    step: Pair
    before: Pair
    size: Pair
    window: Pair
    fill: int = 0

    def channels(self, channels: int) -> int:
        """Return the channels of the folded image."""
        return channels * math.prod(self.step)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the folded image of one of some shape, NCHW."""
        return shape[0], self.channels(shape[1]), *self.size

    def weights(self, weights: NDArray[np.int8]) -> NDArray[np.int8]:
        """Return weights OIHW for the folded image."""
        outputs, inputs, height, width = weights.shape
        rows, columns = (size * step for size, step in zip(self.window, self.step, strict=True))
        # A window that is no multiple of the step gets rows and columns of zeros.
        padded = np.zeros((outputs, inputs, rows, columns), np.int8)
        padded[:, :, :height, :width] = weights
        split = padded.reshape(outputs, inputs, self.window[0], self.step[0], self.window[1], self.step[1])
        return split.transpose(0, 1, 3, 5, 2, 4).reshape(outputs, self.channels(inputs), *self.window)

    def image(self, data: Any) -> Any:
        """Return the Relax expression of a folded image; what no window reads is left out.

        Args:
            data: NCHW.
        """
        shape = shape_of(data.ty) or ()
        batch, channels, *sizes = shape
        extents = [size * step for size, step in zip(self.size, self.step, strict=True)]
        behind = [extent - size - before for extent, size, before in zip(extents, sizes, self.before, strict=True)]
        if any(missing < 0 for missing in behind):
            ends = [size + min(0, missing) for size, missing in zip(sizes, behind, strict=True)]
            data = relax.op.strided_slice(data, axes=[2, 3], begin=[0, 0], end=ends)
        (top, left), (bottom, right) = self.before, (max(0, missing) for missing in behind)
        if any((top, left, bottom, right)):
            data = relax.op.nn.pad(data, [0, 0, 0, 0, top, bottom, left, right], pad_value=self.fill)
        split = relax.op.reshape(data, (batch, channels, self.size[0], self.step[0], self.size[1], self.step[1]))
        moved = relax.op.permute_dims(split, (0, 1, 3, 5, 2, 4))
        return relax.op.reshape(moved, self.shape(shape))


def folding(layer: Conv2d, channels: int, block: int) -> Folding | None:
    """Return how a layer's image is folded; None if it is not: it would fill more than a block, or nothing is gained.

    Args:
        layer: The layer on the image as it is.
        channels: Those of the image that are no filling.
        block: Channels of a block.
    """
    window, step = layer.kernel, layer.stride
    # Steps beyond the window skip pixels, which would only be loaded for nothing.
    narrow = any(extent < by for extent, by in zip(window, step, strict=True))
    if layer.alone or narrow or step == (1, 1) or channels * math.prod(step) > block:
        return None
    rows, columns = (math.ceil(extent / by) for extent, by in zip(window, step, strict=True))
    size = (layer.out_height - 1 + rows, layer.out_width - 1 + columns)
    return Folding(step, layer.padding[:2], size, (rows, columns), layer.pad)
