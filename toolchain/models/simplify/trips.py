"""How many iterations a Loop makes, if that does not depend on the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from toolchain.models import protos

_STATES = 2  # a Loop's inputs, and its body's: the trip count or number and the condition come before the states


def count(
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
        elif positions.get(name, 0) >= _STATES:
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
    graph = _control_graph(nodes, inputs, results, used)
    model = helper.make_model(graph, opset_imports=list(opsets))
    return _LoopControl(model, tuple(numpy_helper.to_array(start) for start in starts))


# The outputs have names of their own: a counter may be passed on unchanged.
def _control_graph(
    nodes: list[onnx.NodeProto], inputs: list[str], results: list[str], constants: Collection[onnx.TensorProto]
) -> onnx.GraphProto:
    ends = [f"{number}.next" for number in range(len(results))]
    moves = [helper.make_node("Identity", [name], [end]) for name, end in zip(results, ends, strict=True)]
    graph_inputs, graph_outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in names]
        for names in (inputs, ends)
    )
    return helper.make_graph([*nodes, *moves], "control", graph_inputs, graph_outputs, list(constants))
