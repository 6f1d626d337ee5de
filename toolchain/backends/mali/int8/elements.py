"""What is between layers on bytes and is no layer: sums, concatenations and maxima of bytes that become bytes again.

An element of such a result is written as an expression of a few bytes, in float32 as ONNX Runtime computes it. So it is
one kernel, which reads and writes four channels at once, and rounds what the file rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm import te, tirx

from toolchain.backends.graph import quantization
from toolchain.backends.graph.values import Operation, Value, four, pair
from toolchain.backends.mali.int8.epilogues import Limits, Other, byte_of, dequantized, step_of
from toolchain.backends.mali.int8.layers import BYTE

Place = tuple[Any, Any, Any, Any]
"""Image, row, column and channel."""

_IMAGE = 4
_MOST = 32  # bytes that an element is made of: windows are unrolled
_LOWEST = -3.4028234663852886e38  # of float32


@dataclass(frozen=True, eq=False)
class Limited:
    """Numbers are limited."""

    part: Tree
    step: Limits


@dataclass(frozen=True, eq=False)
class Sum:
    """Two tensors are added."""

    first: Tree
    second: Tree


@dataclass(frozen=True, eq=False)
class Joined:
    """Channels of several tensors, one after the other; the numbers of channels of each."""

    parts: tuple[Tree, ...]
    channels: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Greatest:
    """The greatest of each window of pixels; height and width of what they are taken from."""

    part: Tree
    size: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]


Tree = Other | Limited | Sum | Joined | Greatest


@dataclass(frozen=True, eq=False)
class Elements:
    """Bytes whose elements are made of a few bytes each.

    Attributes:
        tree: How.
        grid: What the bytes say, as int8.
        out: What the network calls them.
    """

    tree: Tree
    grid: quantization.Grid
    out: Value

    @property
    def leaves(self) -> list[Other]:
        """The bytes that are read, each once."""
        return list({one.value.variable: one for one in _leaves(self.tree)}.values())

    def number(self, tensors: Mapping[Any, te.Tensor]) -> Callable[..., Any]:
        """Return what computes the number at a place, float32, before it is rounded.

        Args:
            tensors: By variable of bytes, the int32 that hold four each, NHWC.
        """
        return lambda *place: _number(self.tree, place, tensors)


def elements_of(operation: Operation) -> Elements | None:
    """Return what an operation makes bytes of, if each of its elements is made of a few bytes."""
    if not quantization.is_quantize(operation) or len(operation.out.shape or ()) != _IMAGE:
        return None
    grid, tree = quantization.grid_of(operation, BYTE), _tree(operation.inputs[0])
    if grid is None or tree is None or _count(tree) > _MOST or operation.out.variable is None:
        return None
    return Elements(tree, grid, operation.out)


def _tree(value: Value) -> Tree | None:
    """Return how an element of an image is made of bytes; None if it is not, or is wanted by others, too."""
    maker = value.maker
    if len(value.shape or ()) != _IMAGE or maker is None:
        return None
    leaf = dequantized(value)
    if leaf is not None or not value.is_alone:
        return leaf
    if maker.name == "concat":
        return _joined(maker)
    return _greatest(maker) if maker.name == "nn.max_pool2d" else _stepped(maker, (value.shape or ())[1])


def _stepped(maker: Operation, channels: int) -> Tree | None:
    for one in maker.inputs:
        step = step_of(maker, one, channels) if one.constant is None else None
        if isinstance(step, Other):
            first, second = (_tree(part) for part in maker.inputs)
            return Sum(first, second) if first is not None and second is not None else None
        if isinstance(step, Limits):
            part = _tree(one)
            return None if part is None else Limited(part, step)
    return None


def _joined(maker: Operation) -> Tree | None:
    parts = [_tree(one) for one in maker.inputs]
    if maker.attributes.axis is None or int(maker.attributes.axis) != 1 or any(one is None for one in parts):
        return None
    return Joined(tuple(one for one in parts if one is not None), tuple((one.shape or ())[1] for one in maker.inputs))


def _greatest(maker: Operation) -> Tree | None:
    attributes, (source,) = maker.attributes, maker.inputs
    part = _tree(source)
    if part is None or str(attributes.layout) != "NCHW" or str(attributes.out_layout) != "NCHW":
        return None
    window, strides, dilation = (pair(getattr(attributes, name)) for name in ("pool_size", "strides", "dilation"))
    top, left, _, _ = four(attributes.padding)
    size, made = (source.shape or ())[2:], (maker.out.shape or ())[2:]
    starts = [count * step - before for count, step, before in zip(made, strides, (top, left), strict=True)]
    last = [start - step for start, step in zip(starts, strides, strict=True)]
    reach = [(count - 1) * far for count, far in zip(window, dilation, strict=True)]
    inside = all(at < end for at, end in zip(last, size, strict=True)) and reach[0] >= top and reach[1] >= left
    if not inside or dilation != (1, 1):  # a window beyond the edge has no greatest
        return None
    before = (top, left)
    if isinstance(part, Joined):  # of side by side the same is taken, one after the other
        each = tuple(Greatest(one, (size[0], size[1]), window, strides, before) for one in part.parts)
        return Joined(each, part.channels)
    return Greatest(part, (size[0], size[1]), window, strides, before)


def _leaves(tree: Tree) -> list[Other]:
    if isinstance(tree, Other):
        return [tree]
    return [leaf for part in _parts(tree) for leaf in _leaves(part)]


def _parts(tree: Tree) -> Sequence[Tree]:
    if isinstance(tree, Sum):
        return (tree.first, tree.second)
    if isinstance(tree, Joined):
        return tree.parts
    return () if isinstance(tree, Other) else (tree.part,)


def _count(tree: Tree) -> int:
    """Return how many bytes an element is made of at most."""
    inner = sum(_count(one) for one in _parts(tree)) or 1
    return inner * tree.window[0] * tree.window[1] if isinstance(tree, Greatest) else inner


def _number(tree: Tree, place: Place, tensors: Mapping[Any, te.Tensor]) -> Any:
    image, row, column, channel = place
    if isinstance(tree, Other):
        return tree.at(tensors[tree.value.variable])(*place)
    if isinstance(tree, Limited):
        return tree.step.of(_number(tree.part, place, tensors))
    if isinstance(tree, Sum):
        return _number(tree.first, place, tensors) + _number(tree.second, place, tensors)
    if isinstance(tree, Greatest):
        return _of_window(tree, place, tensors)
    (part, *others), (count, *_) = tree.parts, tree.channels
    first = _number(part, place, tensors)
    if not others:
        return first
    rest = Joined(tuple(others), tree.channels[1:])
    return tirx.if_then_else(channel < count, first, _number(rest, (image, row, column, channel - count), tensors))


def _of_window(tree: Greatest, place: Place, tensors: Mapping[Any, te.Tensor]) -> Any:
    """Return the greatest number of a window; of plain bytes, the greatest byte says it."""
    part = tree.part
    if isinstance(part, Other) and part.grid is not None and part.grid.scale > 0:
        held = tensors[part.value.variable]
        return part.said(
            reduce(te.max, _window(tree, place, lambda *at: byte_of(held, *at), tirx.const(-128, "int32")))
        )
    number = lambda *at: _number(part, at, tensors)  # noqa: E731 - of four
    return reduce(te.max, _window(tree, place, number, tirx.const(_LOWEST, "float32")))


def _window(tree: Greatest, place: Place, number: Callable[..., Any], beyond: Any) -> list[Any]:
    image, row, column, channel = place
    (height, width), (down, across), (top, left) = tree.size, tree.strides, tree.before
    found = []
    for far in range(tree.window[0]):
        for wide in range(tree.window[1]):
            at, along = row * down + far - top, column * across + wide - left
            inside = tirx.all(at >= 0, at < height, along >= 0, along < width)
            found.append(tirx.if_then_else(inside, number(image, at, along, channel), beyond))
    return found
