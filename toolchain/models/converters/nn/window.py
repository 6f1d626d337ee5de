"""The windows of convolutions and pools: what their attributes come to once the shapes are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.models.converters.node import Node


@dataclass(frozen=True)
class Window:
    """A window that moves over an image.

    Attributes:
        kernel: Its sizes.
        strides: How far it moves.
        dilations: The distance of its elements.
        pads: What the image is padded with before and behind each axis.
        made: Sizes of the result.
        beyond: By how much the last window reaches beyond the padding, which happens where sizes are rounded up.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    made: tuple[int, ...]
    beyond: tuple[int, ...]

    @property
    def reach(self) -> tuple[tuple[int, int], ...]:
        """The padding that all windows fit in."""
        return tuple((before, after + more) for (before, after), more in zip(self.pads, self.beyond, strict=True))

    def widened(self) -> Window:
        """Return the window with an axis of one element before the others."""
        ones = ((1, *self.kernel), (1, *self.strides), (1, *self.dilations))
        return Window(*ones, ((0, 0), *self.pads), (1, *self.made), (0, *self.beyond))


def window(node: Node, kernel: Sequence[int]) -> Window:
    """Return the window of a node.

    Args:
        node: A convolution or a pool; its first input is the image.
        kernel: Sizes of the window.

    Raises:
        InputError: An attribute has not as many numbers as the image has axes.
    """
    sizes = node.shape(0)[2:]
    strides, dilations = numbers(node, "strides", len(sizes), 1), numbers(node, "dilations", len(sizes), 1)
    if len(kernel) != len(sizes):
        raise node.refusal(f"its kernel has {len(kernel)} axes, and its image {len(sizes)}")
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    each = list(zip(sizes, spans, strides, strict=True))
    how = padding(node)
    if how in {"SAME_UPPER", "SAME_LOWER"}:
        pads = [_same(size, span, stride, upper=how == "SAME_UPPER") for size, span, stride in each]
    else:
        pads = given_pads(node, len(sizes)) if how == "NOTSET" else [(0, 0)] * len(sizes)
    up = bool(node.attributes.get("ceil_mode", 0))
    made = [_steps(*one, pad, up=up) for one, pad in zip(each, pads, strict=True)]
    beyond = [
        max(0, (count - 1) * stride + span - size - sum(pad))
        for count, (size, span, stride), pad in zip(made, each, pads, strict=True)
    ]
    return Window(tuple(kernel), strides, dilations, tuple(pads), tuple(made), tuple(beyond))


def padding(node: Node) -> str:
    """Return how a convolution or a pool is padded, by the standard's names.

    Raises:
        InputError: It is none of them.
    """
    how = str(node.attributes.get("auto_pad", "")) or "NOTSET"
    if how not in {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"}:
        raise node.refusal(f"its auto_pad is {how!r}, which is not part of the ONNX standard")
    return how


def numbers(node: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    """Return an attribute that has a number for each axis of the image."""
    found = tuple(int(one) for one in node.attributes.get(name, ())) or (default,) * count
    if len(found) != count:
        raise node.refusal(f"its {name} have {len(found)} numbers instead of {count}")
    return found


def given_pads(node: Node, count: int) -> list[tuple[int, int]]:
    """Return the attribute `pads` by axis: before and behind."""
    found = numbers(node, "pads", 2 * count, 0)
    return list(zip(found[:count], found[count:], strict=True))


def _same(size: int, span: int, stride: int, *, upper: bool) -> tuple[int, int]:
    """Return the padding that makes a result of a stride-th of the size, rounded up."""
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    less, more = total // 2, total - total // 2
    return (less, more) if upper else (more, less)


def _steps(size: int, span: int, stride: int, pads: tuple[int, int], *, up: bool) -> int:
    """Return how many windows there are; none of them starts in the padding behind the image."""
    room = size + sum(pads) - span
    if not up:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pads[0] else count
