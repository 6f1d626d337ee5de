"""Loop and Scan of a known length: their bodies, once for each iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.models.simplify.trips import count as trips_of

_MAX_NODES = 20_000
_FIRST_STATE = 2  # of Loop's inputs: the trip count and the condition come first


def unroll(proto: onnx.ModelProto) -> bool:
    """Unroll every Loop and Scan of a graph whose length is known, in place; return whether there was one."""
    graph = proto.graph
    if not any(node.op_type in _UNROLL for node in graph.node):
        return False
    context = _Context.of(proto)
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        replacement = _UNROLL[node.op_type](node, context) if node.op_type in _UNROLL else None
        changed |= replacement is not None
        nodes += [node] if replacement is None else replacement
    protos.set_repeated(graph.node, nodes)
    graph.initializer.extend(context.added)
    return changed


@dataclass
class _Context:
    """The graph around a loop: its constants and known sizes by name, and the tensors that unrolled bodies add."""

    constants: dict[str, onnx.TensorProto]
    shapes: dict[str, list[int]]
    opsets: list[onnx.OperatorSetIdProto]
    added: list[onnx.TensorProto] = field(default_factory=list)

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> _Context:
        graph = shape_inference.infer_shapes(proto).graph
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                constants[node.output[0]] = node.attribute[0].t
        values = [*graph.input, *graph.value_info, *graph.output]
        shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
        return cls(constants, shapes, list(proto.opset_import))

    def constant(self, name: str, value: Any) -> str:
        self.added.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _loop(node: onnx.NodeProto, context: _Context) -> list[onnx.NodeProto] | None:
    """Unroll a Loop; None if its length is unknown."""
    body = protos.get_attribute(node, "body")
    trips = trips_of(node, context.constants, context.opsets, _MAX_NODES)
    if trips is None:
        return None
    _check_size(node, trips, body)
    states = list(node.input[_FIRST_STATE:])
    scans: list[list[str]] = [[] for _ in body.output[1 + len(states) :]]
    result: list[onnx.NodeProto] = []
    for trip in range(trips):
        iteration = _Iteration(node, trip)
        number = context.constant(iteration.name("trip"), np.array(trip))
        # The number of iterations is known, so the condition holds in each of them.
        true = context.constant(iteration.name("condition"), np.ones((), bool))
        nodes, results = iteration.inline(body, [number, true, *states], context)
        result += nodes
        states = results[1 : 1 + len(states)]
        for scan, value in zip(scans, results[1 + len(states) :], strict=True):
            scan.append(value)
    result += _pass_on(states, node.output)
    for scan, output in zip(scans, node.output[len(states) :], strict=False):
        result += _stack(scan, output, 0, node, context)
    return result


def _scan(node: onnx.NodeProto, context: _Context) -> list[onnx.NodeProto] | None:
    """Unroll a Scan; None if the length of its inputs is unknown."""
    attributes = protos.get_attributes(node)
    body, count = attributes["body"], attributes["num_scan_inputs"]
    states, series = list(node.input[:-count]), list(node.input[-count:])
    axes = attributes.get("scan_input_axes", [0] * count)
    backwards = attributes.get("scan_input_directions", [0] * count)
    sizes = [context.shapes.get(name, []) for name in series]
    if not all(sizes) or sizes[0][axes[0]] <= 0:
        return None
    length = sizes[0][axes[0]]
    _check_size(node, length, body)
    scans: list[list[str]] = [[] for _ in body.output[len(states) :]]
    result: list[onnx.NodeProto] = []
    for trip in range(length):
        iteration = _Iteration(node, trip)
        positions = [length - 1 - trip if back else trip for back in backwards]
        slices = [iteration.name(f"slice{number}") for number in range(count)]
        for name, position, axis, slice_name in zip(series, positions, axes, slices, strict=True):
            index = context.constant(f"{slice_name}.index", np.array(position))
            result.append(helper.make_node("Gather", [name, index], [slice_name], slice_name, axis=axis))
        nodes, results = iteration.inline(body, [*states, *slices], context)
        result += nodes
        states = results[: len(states)]
        for scan, value in zip(scans, results[len(states) :], strict=True):
            scan.append(value)
    result += _pass_on(states, node.output)
    out_axes = attributes.get("scan_output_axes", [0] * len(scans))
    reversed_outputs = attributes.get("scan_output_directions", [0] * len(scans))
    for number, output in enumerate(node.output[len(states) :]):
        ordered = scans[number][::-1] if reversed_outputs[number] else scans[number]
        result += _stack(ordered, output, out_axes[number], node, context)
    return result


_UNROLL = {"Loop": _loop, "Scan": _scan}


def _check_size(node: onnx.NodeProto, trips: int, body: onnx.GraphProto) -> None:
    if trips * max(len(body.node), 1) > _MAX_NODES:
        raise InputError(
            f"{node.op_type} node {node.name!r} is too long to be unrolled",
            details=f"{trips} rounds of {len(body.node)} nodes; at most {_MAX_NODES} nodes are possible",
            hint="run the loop in the application, and export its body as the model",
        )
    if trips <= 0:
        raise InputError(f"{node.op_type} node {node.name!r} has no rounds", hint="export the model without it")


@dataclass(frozen=True)
class _Iteration:
    node: onnx.NodeProto
    trip: int

    def name(self, inner: str) -> str:
        return f"{self.node.name or self.node.output[0]}/{self.trip}/{inner}"

    def inline(
        self, body: onnx.GraphProto, inputs: list[str], context: _Context
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return the body's nodes, and the names of its results."""
        names = dict(zip((value.name for value in body.input), inputs, strict=True))
        local = [name for node in body.node for name in node.output] + [tensor.name for tensor in body.initializer]
        names |= {name: self.name(name) for name in local if name}
        context.added += [protos.clone(tensor, names[tensor.name]) for tensor in body.initializer]
        nodes = [_renamed(node, names) for node in body.node]
        for node, original in zip(nodes, body.node, strict=True):
            node.name = self.name(original.name or original.output[0])
        return nodes, [names.get(value.name, value.name) for value in body.output]


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy of a node that reads and writes other names, in its subgraphs as well."""
    copy = protos.clone(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    for graph in protos.bodies(copy):
        # What a graph declares hides the names around it.
        hidden = {value.name for value in [*graph.input, *graph.initializer]}
        inner = {name: new for name, new in names.items() if name not in hidden}
        nodes = [_renamed(item, inner) for item in graph.node]
        protos.set_repeated(graph.node, nodes)
        for value in graph.output:
            value.name = inner.get(value.name, value.name)
    return copy


def _pass_on(values: list[str], outputs: Any) -> list[onnx.NodeProto]:
    pairs = zip(values, outputs, strict=False)
    return [helper.make_node("Identity", [value], [output]) for value, output in pairs if output]


def _stack(values: list[str], output: str, axis: int, node: onnx.NodeProto, context: _Context) -> list[onnx.NodeProto]:
    """Concatenate the results of all iterations along a new axis."""
    if not output:
        return []
    prefix = f"{node.name or node.output[0]}/{output}"
    axes = context.constant(f"{prefix}.axes", np.array([axis]))
    rows = [f"{prefix}/{number}" for number in range(len(values))]
    nodes = [helper.make_node("Unsqueeze", [value, axes], [row], row) for value, row in zip(values, rows, strict=True)]
    return [*nodes, helper.make_node("Concat", rows, [output], f"{prefix}.stacked", axis=axis)]
