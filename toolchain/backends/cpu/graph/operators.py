"""What operators of Relax are as layers: their attributes, read once for layers on numbers and on bytes."""

from __future__ import annotations

from toolchain.backends.cpu.layers import Activation, Conv, Pool
from toolchain.backends.graph.values import Operation, four, pair

_LAYOUTS = ("NCHW", "OIHW", "NCHW")
_PIXELS = [2, 3]  # axes of NCHW


def conv(operation: Operation, data: Activation, out: Activation, kernel: tuple[int, int]) -> Conv | None:
    """Return a convolution, with the padding of an operation before it; None if its tensors are not NCHW."""
    attributes = operation.attributes
    if (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout)) != _LAYOUTS:
        return None
    top, begin, bottom, right = four(attributes.padding)
    more = four(operation.values or (0, 0, 0, 0))
    padding = (top + more[0], begin + more[1], bottom + more[2], right + more[3])
    shape = (pair(attributes.strides), padding, pair(attributes.dilation), int(attributes.groups))
    return Conv(data, out, kernel, *shape)


def pool(operation: Operation, data: Activation, out: Activation) -> Pool | None:
    """Return a pooling; None if its tensors are not NCHW."""
    attributes, mean = operation.attributes, operation.name == "nn.avg_pool2d"
    if str(attributes.layout) != "NCHW":
        return None
    return Pool(
        data,
        out,
        "mean" if mean else "max",
        pair(attributes.pool_size),
        pair(attributes.strides),
        four(attributes.padding),
        pair(attributes.dilation),
        mean and bool(attributes.count_include_pad),
    )


def is_over_pixels(operation: Operation) -> bool:
    """Whether a reduction is over height and width of NCHW."""
    axes = operation.attributes.axis
    return axes is not None and sorted(int(axis) % 4 for axis in axes) == _PIXELS
