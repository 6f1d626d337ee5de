"""What follows an operator whose number of results depends on the data, as far as it treats each result by itself.

A detector with its suppression inside ends so: indices of boxes, then the boxes, scores and classes that they name,
side by side. Such a tail treats the results and the space behind them alike, so it needs no size but the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper, numpy_helper

from toolchain.models import reads

Shape = tuple[int | None, ...]
"""Sizes of a tensor; None where they are not known."""


@dataclass(frozen=True)
class _Tail:
    """What is known of a graph.

    Attributes:
        shapes: Sizes by tensor.
        constants: Small constants by name.
        axes: Along which axis tensors have the results, as far as the graph has been read.
    """

    shapes: Mapping[str, Shape]
    constants: Mapping[str, list[int]]
    axes: dict[str, int]

    def rank(self, name: str) -> int:
        return len(self.shapes[name])


Rule = Callable[[onnx.NodeProto, _Tail], int]
"""Returns along which axis a node's outputs have the results; LookupError or ValueError if they do not have them so."""


def followed(proto: onnx.ModelProto, name: str, axis: int) -> dict[str, int]:
    """Follow a tensor to the outputs of a model.

    Args:
        proto: The model.
        name: The tensor.
        axis: Along which its size depends on the data.

    Returns:
        The outputs that have the results, and along which axis; none if anything in between needs their number, or
        does not treat each one by itself.
    """
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    tail = _Tail(_shapes(inferred), _constants(proto.graph), {name: axis})
    for node in proto.graph.node:
        captured = {name for body in reads.bodies(node) for name in reads.of_graph(body)}
        if captured & tail.axes.keys():
            return {}
        if not tail.axes.keys() & set(node.input):
            continue
        try:
            found = _RULES[node.op_type](node, tail)
        except (LookupError, ValueError):
            return {}
        tail.axes.update(dict.fromkeys(filter(None, node.output), found))
    return {value.name: tail.axes[value.name] for value in proto.graph.output if value.name in tail.axes}


def _shapes(graph: onnx.GraphProto) -> dict[str, Shape]:
    found: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            found[value.name] = tuple(size.dim_value if size.HasField("dim_value") else None for size in kind.shape.dim)
    return found


def _constants(graph: onnx.GraphProto) -> dict[str, list[int]]:
    whole = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return {
        tensor.name: numpy_helper.to_array(tensor).reshape(-1).tolist()
        for tensor in graph.initializer
        if tensor.data_type in whole and math.prod(tensor.dims) <= 8  # noqa: PLR2004 - as many as a tensor has axes
    }


def _attribute(node: onnx.NodeProto, name: str, usual: Any) -> Any:
    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), usual)


def _axes(node: onnx.NodeProto, tail: _Tail, place: int) -> list[int]:
    """Return the axes that a node names, in an attribute or in an input."""
    given = _attribute(node, "axes", None)
    if given is not None:
        return list(given)
    return tail.constants[node.input[place]]


def _only_first(node: onnx.NodeProto, tail: _Tail) -> int:
    if tail.axes.keys() & set(node.input[1:]):
        raise ValueError("the results decide on how it is computed")
    return tail.axes[node.input[0]]


def _each(node: onnx.NodeProto, tail: _Tail) -> int:
    """Element by element, of tensors with the same axes at the end."""
    rank = max(tail.rank(name) for name in node.input if name)
    ends = {tail.axes[name] - tail.rank(name) for name in node.input if name in tail.axes}
    if len(ends) > 1:
        raise ValueError("the results lie along different axes")
    (end,) = ends
    for name in node.input:
        if name and name not in tail.axes and tail.rank(name) >= -end and tail.shapes[name][end] != 1:
            raise ValueError("a tensor of another size meets the results")
    return rank + end


def _gather(node: onnx.NodeProto, tail: _Tail) -> int:
    data, indices = node.input
    axis = _attribute(node, "axis", 0) % tail.rank(data)
    if data not in tail.axes:
        return int(axis + tail.axes[indices])
    if indices in tail.axes or axis == tail.axes[data]:
        raise ValueError("results are chosen among the results")
    own = tail.axes[data]
    return own if own < axis else own - 1 + tail.rank(indices)


def _gather_nd(node: onnx.NodeProto, tail: _Tail) -> int:
    data, indices = node.input
    last = tail.rank(indices) - 1
    if data in tail.axes or tail.axes[indices] == last or _attribute(node, "batch_dims", 0):
        raise ValueError("results are chosen among the results")
    return tail.axes[indices]


def _slice(node: onnx.NodeProto, tail: _Tail) -> int:
    own, rank = _only_first(node, tail), tail.rank(node.input[0])
    named = len(node.input) > 3 and node.input[3]  # noqa: PLR2004 - data, starts, ends, axes
    axes = tail.constants[node.input[3]] if named else range(len(tail.constants[node.input[1]]))
    if own in {axis % rank for axis in axes}:
        raise ValueError("some of the results are cut away")
    return own


def _other_axis(usual: int) -> Rule:
    """Return the rule of nodes that do something along one axis, which must be another one."""

    def rule(node: onnx.NodeProto, tail: _Tail) -> int:
        own, rank = _only_first(node, tail), tail.rank(node.input[0])
        if _attribute(node, "axis", usual) % rank == own:
            raise ValueError("the results are not treated by themselves")
        return own

    return rule


def _concat(node: onnx.NodeProto, tail: _Tail) -> int:
    axes = {tail.axes[name] for name in node.input}
    own = axes.pop()
    if axes or _attribute(node, "axis", 0) % tail.rank(node.input[0]) == own:
        raise ValueError("the results are joined with others")
    return own


def _unsqueeze(node: onnx.NodeProto, tail: _Tail) -> int:
    own, axes = _only_first(node, tail), _axes(node, tail, 1)
    rank = tail.rank(node.input[0]) + len(axes)
    new = {axis % rank for axis in axes}
    return [place for place in range(rank) if place not in new][own]


def _squeeze(node: onnx.NodeProto, tail: _Tail) -> int:
    own, rank = _only_first(node, tail), tail.rank(node.input[0])
    gone = {axis % rank for axis in _axes(node, tail, 1)}
    return [place for place in range(rank) if place not in gone].index(own)


def _transpose(node: onnx.NodeProto, tail: _Tail) -> int:
    usual = reversed(range(tail.rank(node.input[0])))
    return list(_attribute(node, "perm", usual)).index(_only_first(node, tail))


def _reshape(node: onnx.NodeProto, tail: _Tail) -> int:
    """A new shape whose only open size is that of the results, with as many elements before it and behind it."""
    own, shape, target = _only_first(node, tail), tail.shapes[node.input[0]], tail.constants[node.input[1]]
    place = target.index(-1)
    rest = [size for at, size in enumerate(shape) if at != own]
    if 0 in target or None in rest:
        raise ValueError("sizes are not known")
    before, behind = (math.prod(size or 0 for size in part) for part in (shape[:own], shape[own + 1 :]))
    if math.prod(target[:place]) != before or math.prod(target[place + 1 :]) != behind:
        raise ValueError("the results are cut into others")
    return place


def _reduced(node: onnx.NodeProto, tail: _Tail) -> int:
    own, rank = _only_first(node, tail), tail.rank(node.input[0])
    gone = {axis % rank for axis in _axes(node, tail, 1)}
    if own in gone or not gone:
        raise ValueError("the results are added up")
    return own if _attribute(node, "keepdims", 1) else own - sum(axis < own for axis in gone)


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Cast", "Identity", "Clip", "LeakyRelu", "Elu", "HardSigmoid"), _only_first),
    **dict.fromkeys(("Abs", "Neg", "Not", "Sign", "Exp", "Log", "Sqrt", "Relu", "Sigmoid", "Tanh"), _only_first),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Reciprocal", "Sin", "Cos", "Atan", "IsNaN"), _only_first),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Where", "And", "Or", "Xor"), _each),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _each),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd"), _reduced),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _other_axis(-1)),
    **dict.fromkeys(("Split",), _other_axis(0)),
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Reshape": _reshape,
}
