"""Loop and Scan of a known length: their bodies, once for each iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from toolchain.errors import InputError
from toolchain.models import protos

_MAX_NODES = 20_000
_FIRST_STATE = 2  # of the inputs of Loop and of its body: the trip count or number and the condition come first


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
        graph = shape_inference.infer_shapes(protos.without_weights(proto)).graph
        constants = {tensor.name: tensor for tensor in proto.graph.initializer}
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
    trips = trip_count(node, context.constants, context.opsets, _MAX_NODES)
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


def trip_count(
    node: onnx.NodeProto,
    constants: Mapping[str, onnx.TensorProto],
    opsets: Sequence[onnx.OperatorSetIdProto],
    maximum: int,
) -> int | None:
    """Return the iterations of a Loop: its trip count, or as many as its condition stays true for.

    The result is at most `maximum` + 1; None if it depends on the data.
    """
    body = protos.get_attribute(node, "body")
    limit = maximum + 1
    if node.input[0]:
        if node.input[0] not in constants:
            return None
        limit = min(limit, int(numpy_helper.to_array(constants[node.input[0]]).reshape(())))
    if node.input[1] and node.input[1] not in constants:
        return None
    if node.input[1] and not numpy_helper.to_array(constants[node.input[1]]).reshape(()):
        return 0
    control = _extract_control(node, body, constants, opsets)
    return None if control is None else control.rounds(limit)


@dataclass(frozen=True)
class _LoopControl:
    """The part of a body that decides whether there is another iteration.

    The model maps the iteration number, the condition and counters to the condition and counters, which begin as
    `starts`.
    """

    model: onnx.ModelProto
    starts: tuple[Any, ...]

    def rounds(self, limit: int) -> int:
        """Return the number of iterations, at most `limit`."""
        names = [value.name for value in self.model.graph.input]
        evaluator, counters, condition = ReferenceEvaluator(self.model), list(self.starts), np.ones((), bool)
        for number in range(limit):
            inputs = dict(zip(names, [np.array(number), condition, *counters], strict=True))
            condition, *counters = evaluator.run(None, inputs)
            if not np.all(condition):
                return number + 1
        return limit


def _extract_control(
    node: onnx.NodeProto,
    body: onnx.GraphProto,
    constants: Mapping[str, onnx.TensorProto],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> _LoopControl | None:
    """Return None if the control reads what is computed from the data."""
    makers = {name: item for item in body.node for name in item.output}
    positions = {value.name: position for position, value in enumerate(body.input)}
    constants_of_body = {tensor.name: tensor for tensor in body.initializer}
    needed, visited, counters, used = [body.output[0].name], set[str](), list[int](), list[onnx.TensorProto]()
    while needed:
        name = needed.pop()
        if name in visited or not name:
            continue
        visited.add(name)
        if name in makers:
            if any(attribute.HasField("g") for attribute in makers[name].attribute):
                return None
            needed += makers[name].input
        elif positions.get(name, 0) >= _FIRST_STATE:
            # Its next value is an output of the body, which has one output less than inputs: no iteration number.
            counters.append(positions[name])
            needed.append(body.output[positions[name] - 1].name)
        elif name not in positions:
            if name not in constants_of_body and name not in constants:
                return None
            used.append(protos.clone(constants_of_body.get(name) or constants[name], name))
    starts = [constants.get(node.input[position]) for position in counters]
    if not all(starts):
        return None
    nodes = [item for item in body.node if visited & set(item.output)]
    results = [body.output[0].name, *(body.output[position - 1].name for position in counters)]
    inputs = [body.input[0].name, body.input[1].name, *(body.input[position].name for position in counters)]
    # The outputs have names of their own: a counter may be passed on unchanged.
    ends = [f"{number}.next" for number in range(len(results))]
    moves = [helper.make_node("Identity", [name], [end]) for name, end in zip(results, ends, strict=True)]
    graph_inputs, graph_outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in names]
        for names in (inputs, ends)
    )
    graph = helper.make_graph([*nodes, *moves], "control", graph_inputs, graph_outputs, list(used))
    model = helper.make_model(graph, opset_imports=list(opsets))
    return _LoopControl(model, tuple(numpy_helper.to_array(start) for start in starts))
