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
from toolchain.backends.mali.int8.epilogues import Limits, OtherImage, byte_of, dequantized_image, step_of
from toolchain.backends.mali.int8.layers import BYTE

Position = tuple[Any, Any, Any, Any]
"""Image, row, column and channel."""

_IMAGE = 4
_MOST = 32  # bytes that an element is made of: windows are unrolled
_LOWEST = -3.4028234663852886e38  # of float32


@dataclass(frozen=True, eq=False)
class Clipped:
    """Numbers are limited."""

    inner: Tree
    step: Limits


@dataclass(frozen=True, eq=False)
class Sum:
    """Two tensors are added."""

    first: Tree
    second: Tree


@dataclass(frozen=True, eq=False)
class Concatenated:
    """Channels of several tensors, one after the other; the numbers of channels of each."""

    branches: tuple[Tree, ...]
    channels: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class MaxPool:
    """The greatest of each window of pixels; height and width of what they are taken from."""

    inner: Tree
    size: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]


Tree = OtherImage | Clipped | Sum | Concatenated | MaxPool


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
    def leaves(self) -> list[OtherImage]:
        """The bytes that are read, each once."""
        return list({leaf.value.variable: leaf for leaf in _leaves(self.tree)}.values())

    def number(self, tensors: Mapping[Any, te.Tensor]) -> Callable[..., Any]:
        """Return what computes the number at a place, float32, before it is rounded.

        Args:
            tensors: By variable of bytes, the int32 that hold four each, NHWC.
        """
        return lambda *position: _number(self.tree, position, tensors)


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
    leaf = dequantized_image(value)
    if leaf is not None or not value.is_alone:
        return leaf
    if maker.name == "concat":
        return _joined(maker)
    return _greatest(maker) if maker.name == "nn.max_pool2d" else _stepped(maker, (value.shape or ())[1])


def _stepped(maker: Operation, channels: int) -> Tree | None:
    for operand in maker.inputs:
        step = step_of(maker, operand, channels) if operand.constant is None else None
        if isinstance(step, OtherImage):
            first, second = (_tree(value) for value in maker.inputs)
            return Sum(first, second) if first is not None and second is not None else None
        if isinstance(step, Limits):
            inner = _tree(operand)
            return None if inner is None else Clipped(inner, step)
    return None


def _joined(maker: Operation) -> Tree | None:
    branches = [_tree(value) for value in maker.inputs]
    if maker.attributes.axis is None or int(maker.attributes.axis) != 1 or any(branch is None for branch in branches):
        return None
    return Concatenated(
        tuple(branch for branch in branches if branch is not None),
        tuple((value.shape or ())[1] for value in maker.inputs),
    )


def _greatest(maker: Operation) -> Tree | None:
    attributes, (source,) = maker.attributes, maker.inputs
    inner = _tree(source)
    if inner is None or str(attributes.layout) != "NCHW" or str(attributes.out_layout) != "NCHW":
        return None
    window, strides, dilation = (pair(getattr(attributes, name)) for name in ("pool_size", "strides", "dilation"))
    top, left, _, _ = four(attributes.padding)
    size, result = (source.shape or ())[2:], (maker.out.shape or ())[2:]
    starts = [count * step - before for count, step, before in zip(result, strides, (top, left), strict=True)]
    last = [start - step for start, step in zip(starts, strides, strict=True)]
    reach = [(count - 1) * far for count, far in zip(window, dilation, strict=True)]
    inside = all(start < end for start, end in zip(last, size, strict=True)) and reach[0] >= top and reach[1] >= left
    if not inside or dilation != (1, 1):  # a window beyond the edge has no greatest
        return None
    before = (top, left)
    if isinstance(inner, Concatenated):  # of side by side the same is taken, one after the other
        each = tuple(MaxPool(branch, (size[0], size[1]), window, strides, before) for branch in inner.branches)
        return Concatenated(each, inner.channels)
    return MaxPool(inner, (size[0], size[1]), window, strides, before)


def _leaves(tree: Tree) -> list[OtherImage]:
    if isinstance(tree, OtherImage):
        return [tree]
    return [leaf for branch in _branches(tree) for leaf in _leaves(branch)]


def _branches(tree: Tree) -> Sequence[Tree]:
    if isinstance(tree, Sum):
        return (tree.first, tree.second)
    if isinstance(tree, Concatenated):
        return tree.branches
    return () if isinstance(tree, OtherImage) else (tree.inner,)


def _count(tree: Tree) -> int:
    """Return how many bytes an element is made of at most."""
    inner = sum(_count(branch) for branch in _branches(tree)) or 1
    return inner * tree.window[0] * tree.window[1] if isinstance(tree, MaxPool) else inner


def _number(tree: Tree, position: Position, tensors: Mapping[Any, te.Tensor]) -> Any:
    image, row, column, channel = position
    if isinstance(tree, OtherImage):
        return tree.at(tensors[tree.value.variable])(*position)
    if isinstance(tree, Clipped):
        return tree.step.of(_number(tree.inner, position, tensors))
    if isinstance(tree, Sum):
        return _number(tree.first, position, tensors) + _number(tree.second, position, tensors)
    if isinstance(tree, MaxPool):
        return _of_window(tree, position, tensors)
    (head, *others), (count, *_) = tree.branches, tree.channels
    first = _number(head, position, tensors)
    if not others:
        return first
    rest = Concatenated(tuple(others), tree.channels[1:])
    return tirx.if_then_else(channel < count, first, _number(rest, (image, row, column, channel - count), tensors))


def _of_window(tree: MaxPool, position: Position, tensors: Mapping[Any, te.Tensor]) -> Any:
    """Return the greatest number of a window; of plain bytes, the greatest byte says it."""
    inner = tree.inner
    if isinstance(inner, OtherImage) and inner.grid is not None and inner.grid.scale > 0:
        words = tensors[inner.value.variable]
        return inner.value_of(
            reduce(
                te.max, _window(tree, position, lambda *indices: byte_of(words, *indices), tirx.const(-128, "int32"))
            )
        )
    number = lambda *indices: _number(inner, indices, tensors)  # noqa: E731 - of four
    return reduce(te.max, _window(tree, position, number, tirx.const(_LOWEST, "float32")))


def _window(tree: MaxPool, position: Position, number: Callable[..., Any], beyond: Any) -> list[Any]:
    image, row, column, channel = position
    (height, width), (down, across), (top, left) = tree.size, tree.strides, tree.before
    values = []
    for far in range(tree.window[0]):
        for wide in range(tree.window[1]):
            y, x = row * down + far - top, column * across + wide - left
            inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
            values.append(tirx.if_then_else(inside, number(image, y, x, channel), beyond))
    return values
