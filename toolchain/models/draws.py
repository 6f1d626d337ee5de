"""Which random values an input takes, by its use in the model: rows of a table, divisors, masks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference

from toolchain.models import protos
from toolchain.tensors import Draw, TensorSpec

_PASSED_ON = frozenset(
    {
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
        *("Transpose", "Slice", "Expand", "Tile", "Concat", "Split"),
    }
)
"""Operators whose results have the values of their first input; of Concat of all inputs."""
_LARGEST_DIVISOR = 10
_MASK = re.compile(r"(^|[_./])(\w*mask|is_\w+|has_\w+)$", re.IGNORECASE)
_SMALLEST, _LARGEST = 0.05, 1.0


def with_draws(proto: onnx.ModelProto, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs of a model's inputs, each with its range of values where the graph restricts it."""
    readers = _Readers(proto)
    return tuple(replace(spec, draw=_draw(spec, readers)) for spec in specs)


def binary(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return specs whose integers are drawn from 0 and 1, which most tables, axes and masks accept."""
    return tuple(replace(spec, draw=Draw(0.0, 2.0)) if is_integer(spec) else spec for spec in specs)


def is_integer(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("int", "uint"))


@dataclass(frozen=True)
class _Readers:
    """The readers of each tensor of a graph, and the sizes of its tensors."""

    proto: onnx.ModelProto

    @cached_property
    def by_name(self) -> Mapping[str, list[tuple[onnx.NodeProto, int]]]:
        readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self.proto.graph.node:
            for index, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, index))
        return readers

    @cached_property
    def weights(self) -> Mapping[str, onnx.TensorProto]:
        tensors = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        for node in self.proto.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                tensors[node.output[0]] = node.attribute[0].t
        return tensors

    @cached_property
    def _inferred(self) -> Mapping[str, list[int]]:
        graph = shape_inference.infer_shapes(protos.without_weights(self.proto)).graph
        values = (*graph.input, *graph.value_info, *graph.output)
        return {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}

    def sizes(self, name: str) -> list[int]:
        """Return the sizes of a tensor, 0 for an unknown one; empty if all are unknown."""
        return list(self.weights[name].dims) if name in self.weights else self._inferred.get(name, [])

    def scalar(self, name: str) -> float | None:
        """Return the value of a constant of one element."""
        tensor = self.weights.get(name)
        if tensor is None or math.prod(tensor.dims) != 1:
            return None
        return float(numpy_helper.to_array(tensor).reshape(()))

    def of(self, name: str) -> Iterator[tuple[onnx.NodeProto, int, float]]:
        """Yield the nodes that read a tensor's values, the number of the input, and the constant that was added before.

        The values may be moved or converted on the way. Positions behind a few special ones are sums with a constant.
        """
        names, visited = [(name, 0.0)], {name}
        while names:
            name, offset = names.pop()
            for node, index in self.by_name.get(name, ()):
                yield node, index, offset
                is_moved = node.op_type in _PASSED_ON and (index == 0 or node.op_type == "Concat")
                added = 0.0 if is_moved or node.op_type == "Cast" else self._added(node, index)
                if added is not None:
                    names += [(output, offset + added) for output in node.output if output not in visited]
                    visited.update(node.output)

    def _added(self, node: onnx.NodeProto, index: int) -> float | None:
        """Return the constant that a node adds to one of its inputs; None if it does something else."""
        is_sum = node.op_type == "Add" or (node.op_type == "Sub" and index == 0)
        number = self.scalar(node.input[1 - index]) if is_sum else None
        return number if number is None or node.op_type == "Add" else -number


def _draw(spec: TensorSpec, readers: _Readers) -> Draw | None:
    rules = _INTEGERS if is_integer(spec) else _FLOATS if spec.dtype.startswith("float") else {}
    draws = []
    for node, index, offset in readers.of(spec.name) if rules else ():
        rule = rules.get((node.op_type, index))
        draw = rule(node, readers) if rule else None
        if draw is not None:
            draws.append(Draw(draw.low - offset, draw.high - offset))
    if is_integer(spec) and _MASK.search(spec.name):
        draws.append(Draw(0, 2))
    if not draws:
        return None
    if is_integer(spec):
        kind = np.iinfo(spec.dtype)
        draws.append(Draw(float(kind.min), float(kind.max)))
    low, high = max(draw.low for draw in draws), min(draw.high for draw in draws)
    return Draw(float(low), float(high)) if low < high else None


Rule = Callable[[onnx.NodeProto, _Readers], Draw | None]


def _index(axis: int) -> Rule:
    """Return the rule for indices along the axis that a node names, `axis` by default, of its first input."""

    def rule(node: onnx.NodeProto, readers: _Readers) -> Draw | None:
        sizes = readers.sizes(node.input[0])
        along = protos.get_attribute(node, "axis", axis)
        size = sizes[along] if -len(sizes) <= along < len(sizes) else 0
        return Draw(0, size) if size > 0 else None

    return rule


# Each index of GatherND and ScatterND counts along its own axis; the smallest size is valid for all of them.
def _coordinates(node: onnx.NodeProto, readers: _Readers) -> Draw | None:
    sizes = [size for size in readers.sizes(node.input[0]) if size > 0]
    return Draw(0, min(sizes)) if sizes else None


# A loss compares these classes with scores, which lie along the second axis.
def _classes(node: onnx.NodeProto, readers: _Readers) -> Draw | None:
    sizes = readers.sizes(node.input[0])
    return Draw(0, sizes[1]) if len(sizes) > 1 and sizes[1] > 0 else None


def _depth(node: onnx.NodeProto, readers: _Readers) -> Draw | None:
    depth = readers.scalar(node.input[1])
    return Draw(0, int(depth)) if depth is not None and depth >= 1 else None


def _steps(axis_attribute: str) -> Rule:
    """Return the rule for lengths of sequences along an axis of the node's first input."""

    def rule(node: onnx.NodeProto, readers: _Readers) -> Draw | None:
        sizes, axis = readers.sizes(node.input[0]), protos.get_attribute(node, axis_attribute, 0)
        return Draw(1, sizes[axis] + 1) if axis < len(sizes) and sizes[axis] > 0 else None

    return rule


def _between(low: float, high: float) -> Rule:
    return lambda _node, _readers: Draw(low, high)


# Values on both sides of the thresholds of decision trees: others would all take the same branches.
def _thresholds(node: onnx.NodeProto, _readers: _Readers) -> Draw | None:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    values: list[float] = []
    for name in ("nodes_values", "nodes_values_as_tensor", "nodes_splits"):
        if name in attributes:
            attribute = attributes[name]
            values += attribute.floats or numpy_helper.to_array(attribute.t).reshape(-1).tolist()
    finite = [value for value in values if math.isfinite(value)]
    return Draw(math.floor(min(finite)) - 1, math.ceil(max(finite)) + 1) if finite else None


# Numbers that are converted to truth values are a mask.
def _mask(node: onnx.NodeProto, _readers: _Readers) -> Draw | None:
    return Draw(0, 2) if protos.get_attribute(node, "to", 0) == onnx.TensorProto.BOOL else None


_TREES: Mapping[tuple[str, int], Rule] = {
    (name, 0): _thresholds for name in ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")
}
_INTEGERS: Mapping[tuple[str, int], Rule] = {
    **_TREES,
    ("Gather", 1): _index(0),
    ("GatherElements", 1): _index(0),
    ("ScatterElements", 1): _index(0),
    ("GatherND", 1): _coordinates,
    ("ScatterND", 1): _coordinates,
    ("OneHot", 0): _depth,
    ("NegativeLogLikelihoodLoss", 1): _classes,
    ("SoftmaxCrossEntropyLoss", 1): _classes,
    ("Div", 1): _between(1, _LARGEST_DIVISOR),
    ("Mod", 1): _between(1, _LARGEST_DIVISOR),
    ("BitShift", 1): _between(0, 8),
    ("Cast", 0): _mask,
    ("RNN", 4): _steps("time"),
    ("GRU", 4): _steps("time"),
    ("LSTM", 4): _steps("time"),
    ("ReverseSequence", 1): _steps("time_axis"),
    ("RoiAlign", 2): _index(0),
}
_FLOATS: Mapping[tuple[str, int], Rule] = {
    **_TREES,
    ("Log", 0): _between(_SMALLEST, _LARGEST),
    ("Sqrt", 0): _between(0.0, _LARGEST),
    ("Reciprocal", 0): _between(_SMALLEST, _LARGEST),
    ("Acos", 0): _between(-0.95, 0.95),
    ("Asin", 0): _between(-0.95, 0.95),
    ("Atanh", 0): _between(-0.95, 0.95),
    ("Acosh", 0): _between(1.05, 3.0),
    ("NonMaxSuppression", 0): _between(0.0, _LARGEST),
    ("NonMaxSuppression", 1): _between(0.0, _LARGEST),
}
