"""Find the outputs of a model whose rows are in an order of scores, and which rows came next.

A node that orders (TopK, ArgMax, ArgMin, NonMaxSuppression) is replaced by an input: its choice. Outputs that follow a
reversed choice have its rows, whatever the model computes from them. With the choice of what comes next, the reference
computes the rows that another program may have instead of the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain.models import protos
from toolchain.models.ort import FAULTS, Session, onnxruntime
from toolchain.models.source import SourceModel, as_declared
from toolchain.rankings import Ranking
from toolchain.tensors import TOLERANCE, Tensors, Tolerance

_SUPPRESSION = "NonMaxSuppression"
_ORDERING = frozenset({"TopK", "ArgMax", "ArgMin", _SUPPRESSION})

# The last ones decide about the outputs' rows. Each costs some runs of the reference.
_MAX_NODES = 8
_GATHERS = 11  # the opset that brought GatherElements
_FATAL_ONLY = 4

# How many of the next rows are compared: of few rows, another program may have one that is several ranks behind.
_MAX_NEXT = 64
_MAX_PAGES = 8  # each as long as the rows, and a run of the reference
_MAX_PAGES_OF_ONE = 2  # of an ArgMax, where three equal ones are rare, and images many

# Rounding explains no row that is further behind the last one than a few limits.
_MAX_LIMITS_BEHIND = 4


def rankings(source: SourceModel, inputs: Tensors, tolerance: Tolerance | None) -> tuple[Ranking, ...]:
    """Return a ranking for each node whose rows outputs have: those of the last such node before the output."""
    try:
        source = _inline_branches(source, inputs)
        nodes = _ordering_nodes(source.proto)[-_MAX_NODES:]
        if not nodes:
            return ()
        limit = TOLERANCE["float32"] if tolerance is None else tolerance
        if isinstance(limit, Mapping):
            limit = max([TOLERANCE["float32"], *(value.value for value in limit.values())])
        replay = _Replay(source, inputs, nodes)
        result: list[Ranking] = []
        for number in reversed(range(len(replay.nodes))):
            order = replay.order(number)
            ranked_names = {name for ranking in result for name in ranking.names}
            remaining = [name for name in replay.source.output_names if name not in ranked_names]
            if not remaining or not order.is_ordered or order.chosen.shape[1] + order.next.shape[1] < 2:  # noqa: PLR2004 - a pair
                continue
            if replay.nodes[number].op_type == _SUPPRESSION:
                result += _rank_suppression(replay, number, order, remaining, limit)
            elif names := _outputs_with_rows(replay, number, order, remaining, limit):
                result.append(_node_ranking(replay, number, order, names, limit))
        return tuple(result)
    except FAULTS:
        return ()  # with another choice than its own, a model may reach a state that it cannot compute


def _inline_branches(source: SourceModel, inputs: Tensors) -> SourceModel:
    """Return a model in which the branch with a suppression that these inputs take is a part of the graph."""
    graph = source.proto.graph
    branching = [node for node in graph.node if node.op_type == "If" and _SUPPRESSION in _operators(node)]
    if not branching:
        return source
    proto = as_declared(source)
    declared = {value.name for value in (*graph.input, *graph.output)}
    conditions = list(dict.fromkeys(node.input[0] for node in branching))
    watched = [onnx.helper.make_empty_tensor_value_info(name) for name in conditions if name not in declared]
    proto.graph.output.extend(watched)
    # A first run tells which branches these inputs take.
    values = dict(zip(conditions, _session(proto).run(conditions, dict(inputs)), strict=True))
    proto = as_declared(source)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        if node.op_type != "If" or _SUPPRESSION not in _operators(node):
            nodes.append(node)
            continue
        body = protos.branch_body(node, condition=bool(np.asarray(values[node.input[0]]).item()))
        branch = protos.prefixed_branch(body, node.output[0])
        proto.graph.initializer.extend(branch.constants)
        nodes += branch.nodes
        ends = zip(branch.outputs, node.output, strict=True)
        nodes += [onnx.helper.make_node("Identity", [inner], [outer], outer) for inner, outer in ends]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    protos.set_repeated(proto.graph.node, copies)
    return replace(source, proto=proto)


def _operators(node: onnx.NodeProto) -> set[str]:
    """Return the operators in a node's branches; an empty set if these have branches themselves."""
    nodes = [inner for body in protos.bodies(node) for inner in body.node]
    return set() if any(list(protos.bodies(inner)) for inner in nodes) else {inner.op_type for inner in nodes}


def _session(proto: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, _FATAL_ONLY
    return Session(proto, options)


def _ordering_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    if protos.opset(proto) < _GATHERS:
        return []
    return [node for node in proto.graph.node if node.op_type in _ORDERING and node.domain in protos.STANDARD]


def _rank_suppression(replay: _Replay, number: int, order: _Order, names: Sequence[str], limit: float) -> list[Ranking]:
    """Return the rows of the boxes that a suppression keeps: the first ones of an output, before its padding."""
    usual_outputs = replay.outputs(replay.values)
    result = []
    for count in sorted({_rows_of(usual_outputs[name]) for name in names} - {0}):
        row_count = min(count, order.chosen.shape[1])
        reverse = np.concatenate([order.chosen[:, :row_count][:, ::-1], order.chosen[:, row_count:]], axis=1)
        reversed_outputs = replay.outputs(replay.choose(number, reverse))
        follow = []
        for name in (name for name in names if _rows_of(usual_outputs[name]) == count):
            rows, moved = (values[name].reshape(count, -1) for values in (usual_outputs, reversed_outputs))
            follow += [name] if row_count > 1 and _are_reversed(rows[:row_count], moved[:row_count], limit) else []
            # Padding behind the rows must not move with them.
            if not np.array_equal(rows[row_count:], moved[row_count:], equal_nan=rows.dtype.kind == "f"):
                follow = [follower for follower in follow if follower != name]
        if follow:
            result.append(_suppression_ranking(replay, number, order, tuple(follow), (count, row_count)))
    return result


# The first axis that is not 1 has the rows of one image.
def _rows_of(value: NDArray[Any]) -> int:
    return next((size for size in value.shape if size != 1), 0)


def _are_reversed(rows: NDArray[Any], moved: NDArray[Any], limit: float) -> bool:
    is_real = rows.dtype.kind == "f"
    scale = np.abs(rows, dtype=np.float64).max(initial=0, where=np.isfinite(rows)) if is_real else 0
    # An output that is the same in both orders does not follow the choice.
    same = np.allclose(rows[::-1], moved, rtol=0, atol=limit * scale, equal_nan=is_real)
    return same and not np.array_equal(rows, moved, equal_nan=is_real)


# Besides the rows that an output has, those that are cut off behind the last one.
def _suppression_ranking(
    replay: _Replay, number: int, order: _Order, names: tuple[str, ...], sizes: tuple[int, int]
) -> Ranking:
    count, row_count = sizes
    next_choice = order.chosen[:, row_count : row_count + max(_MAX_NEXT, row_count)]
    rest = order.chosen[:, row_count + next_choice.shape[1] :]
    first = np.concatenate([next_choice, order.chosen[:, :row_count], rest], axis=1)
    scores = np.full((1, count), -np.inf)
    scores[:, :row_count] = order.scores[:, :row_count]
    next_count = min(next_choice.shape[1], row_count)
    outputs = replay.outputs(replay.choose(number, first)) if next_count else replay.outputs(replay.values)
    next_rows = {name: outputs[name].reshape(1, count, -1)[:, :next_count] for name in names}
    return Ranking(names, scores, order.scores[:, row_count : row_count + next_count], next_rows)


def _outputs_with_rows(
    replay: _Replay, number: int, order: _Order, names: Sequence[str], limit: float
) -> tuple[str, ...]:
    """Return the outputs that follow the choice of a node, row by row."""
    batch, count = order.chosen.shape
    usual = {name: value for name, value in replay.outputs(replay.values).items() if name in names}
    usual = {name: value for name, value in usual.items() if value.size and value.size % (batch * count) == 0}
    chosen = order.chosen[:, ::-1].copy()
    # A single row has no reverse: in every other element of the batch, the next one is chosen instead.
    if count == 1:
        chosen[::2] = order.next[::2, :1]
    other = replay.outputs(replay.choose(number, chosen))
    following = []
    for name, value in usual.items():
        rows, moved = value.reshape(batch, count, -1), other[name].reshape(batch, count, -1)
        if count == 1:
            follows = np.array_equal(rows[1::2], moved[1::2], equal_nan=True) and not np.array_equal(rows, moved)
        else:
            follows = _are_reversed(rows.swapaxes(0, 1), moved.swapaxes(0, 1), limit)
        following += [name] if follows else []
    return tuple(following)


def _node_ranking(replay: _Replay, number: int, order: _Order, names: tuple[str, ...], limit: float) -> Ranking:
    """Collect the rows that came next, of this node and of those before it, as far as the limit allows them."""
    batch, count = order.chosen.shape
    usual = {name: replay.values[name].reshape(batch, count, -1) for name in names}
    candidates: list[tuple[NDArray[Any], dict[str, NDArray[Any]]]] = []
    for earlier in range(number + 1):
        choice = replay.order(earlier)
        for page in choice.pages if choice.is_ordered else []:
            # The node chooses the page of next rows first; its other rows move behind them.
            chosen = np.concatenate([page, choice.chosen], axis=1)[:, : choice.chosen.shape[1]]
            values = replay.choose(earlier, chosen)
            page_scores = replay.order(number, values).scores
            if earlier == number:
                page_scores = page_scores[:, : page.shape[1]]
            candidates.append((page_scores, replay.outputs(values)))
    if not candidates:  # the node sorts: all elements were chosen
        none = {name: value[:, :0] for name, value in usual.items()}
        return Ranking(names, order.scores, order.scores[:, :0], none)
    scores = np.concatenate([candidate[0] for candidate in candidates], axis=1)
    rows = {}
    for name in names:
        blocks = [outputs[name].reshape(batch, count, -1)[:, : scored.shape[1]] for scored, outputs in candidates]
        rows[name] = np.concatenate(blocks, axis=1)
    sign = -1 if order.is_least else 1
    margin = _MAX_LIMITS_BEHIND * limit * np.abs(order.scores).max(initial=0)
    is_near = sign * scores >= (sign * order.scores[:, -1:]) - margin
    for index in range(count):  # rows that the usual outputs have are not candidates
        same = scores == order.scores[:, index : index + 1]
        for name in names:
            same &= (rows[name] == usual[name][:, index : index + 1]).all(axis=2)
        is_near &= ~same
    selection = np.argsort(~is_near, axis=1, kind="stable")[:, : int(is_near.sum(axis=1).max(initial=0))]
    next_scores = np.where(np.take_along_axis(is_near, selection, 1), np.take_along_axis(scores, selection, 1), np.nan)
    next_rows = {name: np.take_along_axis(value, selection[:, :, None], 1) for name, value in rows.items()}
    return Ranking(names, order.scores, next_scores, next_rows)


@dataclass(frozen=True)
class _Order:
    """The choice of a node; its axis comes last.

    Attributes:
        data: [batch, elements].
        chosen: [batch, rows], indices of elements.
        is_real: Whether the data are floats.
    """

    data: NDArray[Any]
    chosen: NDArray[Any]
    is_least: bool
    is_real: bool
    is_suppression: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether two orders may be equally good: integers have one order, and infinities are not compared."""
        return self.is_real and bool(np.isfinite(self.scores).all())

    @property
    def scores(self) -> NDArray[Any]:
        """[batch, rows]."""
        return np.take_along_axis(self.data, self.chosen, axis=1)

    @cached_property
    def next(self) -> NDArray[Any]:
        """Indices of what came next, [batch, more]; empty for a suppression, which drops what another box covers."""
        if self.is_suppression:
            return self.chosen[:, :0]
        rest = self.data.copy() if self.is_least else -self.data
        np.put_along_axis(rest, self.chosen, np.nan, axis=1)  # the last ones of any order
        return np.argsort(rest, axis=1, kind="stable")[:, : rest.shape[1] - self.chosen.shape[1]]

    @property
    def pages(self) -> list[NDArray[Any]]:
        """What came next, in parts of at most as many as were chosen, [batch, more]."""
        count = self.chosen.shape[1]
        limit = _MAX_PAGES if count > 1 else _MAX_PAGES_OF_ONE
        number = min(limit, -(-min(max(_MAX_NEXT, count), self.next.shape[1]) // count))
        return [self.next[:, page * count : (page + 1) * count] for page in range(number)]


class _Replay:
    """A model in which one ordering node at a time is replaced by an input with its choice."""

    def __init__(self, source: SourceModel, inputs: Tensors, nodes: Sequence[onnx.NodeProto]) -> None:
        self.source, self.inputs, self.nodes = source, inputs, nodes
        self.watched = [name for node in nodes for name in (_scores_name(node), _index_name(node))]
        self._sessions: dict[int, Any] = {}
        self.values = self._run(self._session(None), {})

    def outputs(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {name: values[name] for name in self.source.output_names}

    def order(self, number: int, values: Mapping[str, NDArray[Any]] | None = None) -> _Order:
        values, node = self.values if values is None else values, self.nodes[number]
        if node.op_type == _SUPPRESSION:
            data = values[_scores_name(node)]
            flat = np.ravel_multi_index(tuple(values[_index_name(node)].T), data.shape).reshape(1, -1)
            return _Order(
                data.astype(np.float64).reshape(1, -1), flat, is_least=False, is_real=True, is_suppression=True
            )
        data, axis = values[node.input[0]], self._axis(number)
        chosen = values[_index_name(node)]
        if node.op_type != "TopK" and chosen.ndim < data.ndim:
            chosen = np.expand_dims(chosen, axis)
        data, chosen = np.moveaxis(data, axis, -1), np.moveaxis(chosen, axis, -1)
        flat = data.astype(np.float64).reshape(-1, data.shape[-1]), chosen.reshape(-1, chosen.shape[-1])
        is_least = node.op_type == "ArgMin" or not protos.get_attribute(node, "largest", 1)
        return _Order(*flat, is_least, values[node.input[0]].dtype.kind == "f")

    def choose(self, number: int, chosen: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run with the choice of a node, [batch, rows]."""
        node = self.nodes[number]
        usual = self.values[_index_name(node)]
        if number not in self._sessions:
            self._sessions[number] = self._session(number)
        if node.op_type == _SUPPRESSION:
            coordinates = np.unravel_index(chosen.reshape(-1), self.values[_scores_name(node)].shape)
            indices = np.stack(coordinates, axis=1).astype(np.int64)
            return self._run(self._sessions[number], {_index_name(node): indices})
        data, axis = self.values[node.input[0]], self._axis(number)
        sizes = list(data.shape)
        sizes[axis] = chosen.shape[-1]
        shape = [*sizes[:axis], *sizes[axis + 1 :], -1]
        moved = np.moveaxis(chosen.reshape(shape), -1, axis)
        return self._run(self._sessions[number], {_index_name(node): moved.reshape(usual.shape).astype(np.int64)})

    def _axis(self, number: int) -> int:
        node = self.nodes[number]
        default = -1 if node.op_type == "TopK" else 0
        return int(protos.get_attribute(node, "axis", default)) % self.values[node.input[0]].ndim

    def _session(self, number: int | None) -> Any:
        proto = as_declared(self.source)
        for node in _ordering_nodes(proto):
            # Of a TopK, the indices may be left out.
            if node.op_type == "TopK" and not (len(node.output) > 1 and node.output[1]):
                node.output[:] = [node.output[0], _index_name(node)]
        declared = {value.name for value in (*proto.graph.output, *proto.graph.input)}
        extra = [name for name in dict.fromkeys(self.watched) if name not in declared]
        if number is not None:
            node = self.nodes[number]
            position = next(
                position for position, other in enumerate(proto.graph.node) if other.output[:1] == node.output[:1]
            )
            axis = protos.get_attribute(node, "axis", -1)
            index = _index_name(node)
            values = onnx.helper.make_node("GatherElements", [node.input[0], index], [node.output[0]], axis=axis)
            del proto.graph.node[position]
            if node.op_type == "TopK" and node.output[0]:
                proto.graph.node.insert(position, values)
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(
                    index, onnx.TensorProto.INT64, self.values[_index_name(self.nodes[number])].shape
                )
            )
            outputs = [value for value in proto.graph.output if value.name != index]
            protos.set_repeated(proto.graph.output, outputs)
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in extra)
        return _session(proto)

    def _run(self, session: Any, more: Tensors) -> dict[str, NDArray[Any]]:
        names = [output.name for output in session.get_outputs() if output.name not in more]
        values = session.run(names, dict(self.inputs) | dict(more))
        return dict(self.inputs) | dict(zip(names, map(np.asarray, values), strict=True)) | dict(more)


def _scores_name(node: onnx.NodeProto) -> str:
    return str(node.input[1 if node.op_type == _SUPPRESSION else 0])


def _index_name(node: onnx.NodeProto) -> str:
    """Return the name of a node's indices; those that nothing reads get a name of ours."""
    position = 1 if node.op_type == "TopK" else 0
    return (node.output[position] if len(node.output) > position else "") or f"{node.output[0]}.index"
