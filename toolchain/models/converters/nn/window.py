"""The windows of convolutions and pools once the shapes are known, and operations on their weights.

Weights are arrays if they are constants, else expressions that the network computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import Node


@dataclass(frozen=True)
class Window:
    """A window that moves over an image; each field has one entry for each axis of the image.

    Attributes:
        dilations: Distance of the window's elements.
        pads: Padding before and behind the image.
        output_sizes: How many positions the window has.
        overhang: How far the last window reaches beyond the padding, where sizes are rounded up.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    output_sizes: tuple[int, ...]
    overhang: tuple[int, ...]

    @property
    def reach(self) -> tuple[tuple[int, int], ...]:
        """The padding that contains all windows."""
        return tuple(
            (before, after + overhang) for (before, after), overhang in zip(self.pads, self.overhang, strict=True)
        )

    def widened(self) -> Window:
        """Return the window with an axis of one element before the others."""
        ones = ((1, *self.kernel), (1, *self.strides), (1, *self.dilations))
        return Window(*ones, ((0, 0), *self.pads), (1, *self.output_sizes), (0, *self.overhang))


def window(node: Node, kernel: Sequence[int]) -> Window:
    sizes = node.shape(0)[2:]
    strides, dilations = axis_numbers(node, "strides", len(sizes), 1), axis_numbers(node, "dilations", len(sizes), 1)
    if len(kernel) != len(sizes):
        raise node.refusal(f"its kernel has {len(kernel)} axes, and its image {len(sizes)}")
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    axes = list(zip(sizes, spans, strides, strict=True))
    mode = padding_mode(node)
    if mode in {"SAME_UPPER", "SAME_LOWER"}:
        pads = [_same_padding(size, span, stride, upper=mode == "SAME_UPPER") for size, span, stride in axes]
    else:
        pads = explicit_pads(node, len(sizes)) if mode == "NOTSET" else [(0, 0)] * len(sizes)
    up = bool(node.attributes.get("ceil_mode", 0))
    output_sizes = [_window_count(*axis, pad, up=up) for axis, pad in zip(axes, pads, strict=True)]
    overhang = [
        max(0, (count - 1) * stride + span - size - sum(pad))
        for count, (size, span, stride), pad in zip(output_sizes, axes, pads, strict=True)
    ]
    return Window(tuple(kernel), strides, dilations, tuple(pads), tuple(output_sizes), tuple(overhang))


def padding_mode(node: Node) -> str:
    """Return the standard's name for how a convolution or pool is padded."""
    mode = str(node.attributes.get("auto_pad", "")) or "NOTSET"
    if mode not in {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"}:
        raise node.refusal(f"its auto_pad is {mode!r}, which is not part of the ONNX standard")
    return mode


def axis_numbers(node: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    """Return an attribute that has a number for each axis of the image."""
    values = tuple(int(value) for value in node.attributes.get(name, ())) or (default,) * count
    if len(values) != count:
        raise node.refusal(f"its {name} have {len(values)} numbers instead of {count}")
    return values


def explicit_pads(node: Node, count: int) -> list[tuple[int, int]]:
    """Return the attribute `pads` by axis, as (before, behind)."""
    pads = axis_numbers(node, "pads", 2 * count, 0)
    return list(zip(pads[:count], pads[count:], strict=True))


def _same_padding(size: int, span: int, stride: int, *, upper: bool) -> tuple[int, int]:
    """Return the padding for an output of ceil(size / stride)."""
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    less, more = total // 2, total - total // 2
    return (less, more) if upper else (more, less)


def _window_count(size: int, span: int, stride: int, pads: tuple[int, int], *, up: bool) -> int:
    """Return the number of windows; none of them starts in the padding behind the image."""
    room = size + sum(pads) - span
    if not up:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pads[0] else count


def input_weights(node: Node, index: int) -> Any:
    """Return an input as an array if it is constant, else as an expression."""
    return node.constant(index) if node.is_constant(index) else node.input(index)


def shape(weights: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in (weights.shape if isinstance(weights, np.ndarray) else weights.ty.shape))


def as_expression(weights: Any) -> Any:
    return relax.const(np.ascontiguousarray(weights)) if isinstance(weights, np.ndarray) else weights


def reshape(node: Node, weights: Any, sizes: Sequence[int]) -> Any:
    return weights.reshape(sizes) if isinstance(weights, np.ndarray) else node.emit(relax.op.reshape(weights, sizes))


def permute(node: Node, weights: Any, axes: Sequence[int]) -> Any:
    if isinstance(weights, np.ndarray):
        return weights.transpose(axes)
    return node.emit(relax.op.permute_dims(weights, list(axes)))


def take(node: Node, weights: Any, indices: Sequence[int], axis: int) -> Any:
    elements = np.asarray(indices, np.int32)
    if isinstance(weights, np.ndarray):
        return weights.take(elements, axis)
    return node.emit(relax.op.take(weights, relax.const(elements), axis=axis, mode="clip"))


def concatenate(node: Node, parts: Sequence[Any], axis: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    return node.emit(relax.op.concat(list(parts), axis=axis))
