"""How many rounds a Loop makes, where that does not depend on the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

_STATES = 2  # a Loop's inputs, and its body's: the trip count or number and the condition come before the states


def count(
    node: onnx.NodeProto,
    constants: Mapping[str, onnx.TensorProto],
    opsets: Sequence[onnx.OperatorSetIdProto],
    most: int,
) -> int | None:
    """Return the rounds of a Loop: its trip count, or as many as its condition stays true for.

    Args:
        node: The Loop.
        constants: Tensors of the graph around it whose values are known.
        opsets: Versions of the operators.
        most: Where counting ends.

    Returns:
        How many, at most `most` + 1; None if that depends on the data.
    """
    body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    limit = most + 1
    if node.input[0]:
        if node.input[0] not in constants:
            return None
        limit = min(limit, int(numpy_helper.to_array(constants[node.input[0]]).reshape(())))
    if node.input[1] and node.input[1] not in constants:
        return None
    if node.input[1] and not numpy_helper.to_array(constants[node.input[1]]).reshape(()):
        return 0
    control = _control(node, body, constants, opsets)
    return None if control is None else control.rounds(limit)


@dataclass(frozen=True)
class _Control:
    """The part of a body that decides whether there is one round more.

    Attributes:
        model: From the number of the round, the condition and counters to the condition and counters.
        starts: What the counters are before the first round, in the model's order.
    """

    model: onnx.ModelProto
    starts: tuple[Any, ...]

    def rounds(self, limit: int) -> int:
        """Return how many rounds there are, at most `limit`."""
        names = [value.name for value in self.model.graph.input]
        run, counters, condition = ReferenceEvaluator(self.model), list(self.starts), np.ones((), bool)
        for number in range(limit):
            fed = dict(zip(names, [np.array(number), condition, *counters], strict=True))
            condition, *counters = run.run(None, fed)
            if not np.all(condition):
                return number + 1
        return limit


def _control(
    node: onnx.NodeProto,
    body: onnx.GraphProto,
    constants: Mapping[str, onnx.TensorProto],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> _Control | None:
    """Take that part out of a body; None if it reads what is computed from the data."""
    makers = {name: item for item in body.node for name in item.output}
    places = {value.name: place for place, value in enumerate(body.input)}
    known = {tensor.name: tensor for tensor in body.initializer}
    needed, done, counters, used = [body.output[0].name], set[str](), list[int](), list[onnx.TensorProto]()
    while needed:
        name = needed.pop()
        if name in done or not name:
            continue
        done.add(name)
        if name in makers:
            if any(attribute.HasField("g") for attribute in makers[name].attribute):
                return None
            needed += makers[name].input
        elif places.get(name, 0) >= _STATES:
            counters.append(places[name])
            needed.append(body.output[places[name] - 1].name)
        elif name not in places:
            if name not in known and name not in constants:
                return None
            used.append(_named(known.get(name) or constants[name], name))
    starts = [constants.get(node.input[place]) for place in counters]
    if not all(starts):
        return None
    nodes = [item for item in body.node if done & set(item.output)]
    results = [body.output[0].name, *(body.output[place - 1].name for place in counters)]
    inputs = [body.input[0].name, body.input[1].name, *(body.input[place].name for place in counters)]
    graph = _graph(nodes, inputs, results, used)
    model = helper.make_model(graph, opset_imports=list(opsets))
    return _Control(model, tuple(numpy_helper.to_array(start) for start in starts))


def _named(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def _graph(
    nodes: list[onnx.NodeProto], inputs: list[str], results: list[str], constants: Collection[onnx.TensorProto]
) -> onnx.GraphProto:
    """Return a graph whose outputs have names of their own: a counter may be handed on as it is."""
    ends = [f"{number}.next" for number in range(len(results))]
    moves = [helper.make_node("Identity", [name], [end]) for name, end in zip(results, ends, strict=True)]
    given, made = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in names]
        for names in (inputs, ends)
    )
    return helper.make_graph([*nodes, *moves], "control", given, made, list(constants))
