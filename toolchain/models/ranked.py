"""Find the outputs of a model whose rows are in an order of scores, and which rows came next.

A node that orders (TopK, ArgMax, ArgMin, NonMaxSuppression) is replaced by an input, its choice. What the outputs do
when the choice is reversed tells which of them have its rows, whatever the model computes from them. With the choice of
what comes next, the reference computes the rows that another program may have instead of the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain.models import subgraphs
from toolchain.models.ort import FAULTS, onnxruntime
from toolchain.models.source import SourceModel, as_declared
from toolchain.rankings import Ranking
from toolchain.tensors import TOLERANCE, Tensors, Tolerance

_SUPPRESSION = "NonMaxSuppression"
_ORDERING = frozenset({"TopK", "ArgMax", "ArgMin", _SUPPRESSION})
_MOST_NODES = 8
"""The last ones decide about the outputs' rows. Each costs some runs of the reference."""
_GATHERS = 11
"""The opset that brought GatherElements."""
_FATAL_ONLY = 4

# How many rows that came next are looked at: of few rows another program may have one that is some places behind.
_NEXT = 64
_MOST_PAGES = 8  # each as long as the rows, and a run of the reference
_PAGES_OF_ONE = 2  # of an ArgMax, where three equal ones are rare, and images many

# Rows that are further behind the last one than a few limits are nobody's.
_BEHIND = 4


def rankings(source: SourceModel, fed: Tensors, tolerance: Tolerance | None) -> tuple[Ranking, ...]:
    """Find which outputs have rows in an order of scores.

    Args:
        source: The model.
        fed: What it is run with.
        tolerance: Limit for the outputs' relative difference; None for that of single precision.

    Returns:
        One for each node whose rows outputs have; an output has the rows of one node, the last one before it.
    """
    try:
        source = _without_branches(source, fed)
        nodes = _ordering_nodes(source.proto)[-_MOST_NODES:]
        if not nodes:
            return ()
        return _found(_Replay(source, fed, nodes), _widest(tolerance))
    except FAULTS:
        return ()  # a choice that the model does not make itself may be one that it cannot go on with


def _widest(tolerance: Tolerance | None) -> float:
    if isinstance(tolerance, Mapping):
        return max([TOLERANCE["float32"], *(limit.value for limit in tolerance.values())])
    return TOLERANCE["float32"] if tolerance is None else tolerance


def _without_branches(source: SourceModel, fed: Tensors) -> SourceModel:
    """Return a model in which the branch with a suppression that is taken for these inputs is a part of the graph."""
    graph = source.proto.graph
    held = [node for node in graph.node if node.op_type == "If" and _SUPPRESSION in _operators(node)]
    if not held:
        return source
    proto = as_declared(source)
    known = {value.name for value in (*graph.input, *graph.output)}
    conditions = list(dict.fromkeys(node.input[0] for node in held))
    watched = [onnx.helper.make_empty_tensor_value_info(name) for name in conditions if name not in known]
    proto.graph.output.extend(watched)
    values = dict(zip(conditions, _session(proto).run(conditions, dict(fed)), strict=True))
    proto = as_declared(source)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        if node.op_type != "If" or _SUPPRESSION not in _operators(node):
            nodes.append(node)
            continue
        taken = subgraphs.branch_body(node, condition=bool(np.asarray(values[node.input[0]]).item()))
        branch = subgraphs.prefixed_branch(taken, node.output[0])
        proto.graph.initializer.extend(branch.constants)
        nodes += branch.nodes
        ends = zip(branch.outputs, node.output, strict=True)
        nodes += [onnx.helper.make_node("Identity", [inner], [outer], outer) for inner, outer in ends]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    return replace(source, proto=proto)


def _operators(node: onnx.NodeProto) -> set[str]:
    """Return the operators of branches; none where these have branches themselves."""
    inner = [inner for body in subgraphs.bodies(node) for inner in body.node]
    return set() if any(list(subgraphs.bodies(one)) for one in inner) else {one.op_type for one in inner}


def _session(proto: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, _FATAL_ONLY
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _ordering_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    opset = max((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), default=1)
    if opset < _GATHERS:
        return []
    return [node for node in proto.graph.node if node.op_type in _ORDERING and node.domain in {"", "ai.onnx"}]


def _found(replay: _Replay, limit: float) -> tuple[Ranking, ...]:
    found: list[Ranking] = []
    for number in reversed(range(len(replay.nodes))):
        order = replay.order(number)
        taken = {name for ranking in found for name in ranking.names}
        rest = [name for name in replay.source.output_names if name not in taken]
        if not rest or not order.is_ordered or order.chosen.shape[1] + order.next.shape[1] < 2:  # noqa: PLR2004 - a pair
            continue
        if replay.nodes[number].op_type == _SUPPRESSION:
            found += _of_suppression(replay, number, order, rest, limit)
        elif names := _with_rows(replay, number, order, rest, limit):
            found.append(_ranking(replay, number, order, names, limit))
    return tuple(found)


def _of_suppression(replay: _Replay, number: int, order: _Order, names: Sequence[str], limit: float) -> list[Ranking]:
    """Return the rows of the boxes that a suppression keeps: the first ones of an output, with padding behind them."""
    usual = replay.outputs(replay.values)
    found = []
    for count in sorted({_rows_of(usual[name]) for name in names} - {0}):
        kept = min(count, order.chosen.shape[1])
        reverse = np.concatenate([order.chosen[:, :kept][:, ::-1], order.chosen[:, kept:]], axis=1)
        other = replay.outputs(replay.choose(number, reverse))
        follow = []
        for name in (name for name in names if _rows_of(usual[name]) == count):
            rows, moved = (values[name].reshape(count, -1) for values in (usual, other))
            follow += [name] if kept > 1 and _are_reversed(rows[:kept], moved[:kept], limit) else []
            if not np.array_equal(rows[kept:], moved[kept:], equal_nan=rows.dtype.kind == "f"):
                follow = [one for one in follow if one != name]
        if follow:
            found.append(_kept(replay, number, order, tuple(follow), (count, kept)))
    return found


def _rows_of(value: NDArray[Any]) -> int:
    """Return the size of the first axis that is not 1: along it are the rows of one image."""
    return next((size for size in value.shape if size != 1), 0)


def _are_reversed(rows: NDArray[Any], moved: NDArray[Any], limit: float) -> bool:
    """Tell whether rows are in the opposite order, as near as a limit says."""
    is_real = rows.dtype.kind == "f"
    scale = np.abs(rows, dtype=np.float64).max(initial=0, where=np.isfinite(rows)) if is_real else 0
    same = np.allclose(rows[::-1], moved, rtol=0, atol=limit * scale, equal_nan=is_real)
    return same and not np.array_equal(rows, moved, equal_nan=is_real)


def _kept(replay: _Replay, number: int, order: _Order, names: tuple[str, ...], sizes: tuple[int, int]) -> Ranking:
    """Collect scores of rows, and those that are cut off behind the last row."""
    count, kept = sizes
    more = order.chosen[:, kept : kept + max(_NEXT, kept)]
    first = np.concatenate([more, order.chosen[:, :kept], order.chosen[:, kept + more.shape[1] :]], axis=1)
    scores = np.full((1, count), -np.inf)
    scores[:, :kept] = order.scores[:, :kept]
    shown = min(more.shape[1], kept)
    outputs = replay.outputs(replay.choose(number, first)) if shown else replay.outputs(replay.values)
    next_rows = {name: outputs[name].reshape(1, count, -1)[:, :shown] for name in names}
    return Ranking(names, scores, order.scores[:, kept : kept + shown], next_rows)


def _with_rows(replay: _Replay, number: int, order: _Order, names: Sequence[str], limit: float) -> tuple[str, ...]:
    """Return the outputs that have the rows of a node: they follow its choice, row by row."""
    batch, count = order.chosen.shape
    usual = {name: value for name, value in replay.outputs(replay.values).items() if name in names}
    usual = {name: value for name, value in usual.items() if value.size and value.size % (batch * count) == 0}
    chosen = order.chosen[:, ::-1].copy()
    if count == 1:
        chosen[::2] = order.next[::2, :1]
    other = replay.outputs(replay.choose(number, chosen))
    found = []
    for name, value in usual.items():
        rows, moved = value.reshape(batch, count, -1), other[name].reshape(batch, count, -1)
        if count == 1:
            follows = np.array_equal(rows[1::2], moved[1::2], equal_nan=True) and not np.array_equal(rows, moved)
        else:
            follows = _are_reversed(rows.swapaxes(0, 1), moved.swapaxes(0, 1), limit)
        found += [name] if follows else []
    return tuple(found)


def _ranking(replay: _Replay, number: int, order: _Order, names: tuple[str, ...], limit: float) -> Ranking:
    """Collect the rows that came next, of this node and of those before it, as far as a limit allows to choose them."""
    batch, count = order.chosen.shape
    usual = {name: replay.values[name].reshape(batch, count, -1) for name in names}
    parts = []
    for place in range(number + 1):
        other = replay.order(place)
        if other.is_ordered:
            parts += [_next_of(replay, place, number, other, page) for page in other.pages]
    if not parts:  # all of them were chosen: a sort
        none = {name: value[:, :0] for name, value in usual.items()}
        return Ranking(names, order.scores, order.scores[:, :0], none)
    scores = np.concatenate([part[0] for part in parts], axis=1)
    rows = {
        name: np.concatenate(
            [values[name].reshape(batch, count, -1)[:, : own.shape[1]] for own, values in parts], axis=1
        )
        for name in names
    }
    sign = -1 if order.is_least else 1
    near = sign * scores >= (sign * order.scores[:, -1:]) - _BEHIND * limit * np.abs(order.scores).max(initial=0)
    for index in range(count):  # what is among the usual ones counts once
        same = scores == order.scores[:, index : index + 1]
        for name in names:
            same &= (rows[name] == usual[name][:, index : index + 1]).all(axis=2)
        near &= ~same
    keep = np.argsort(~near, axis=1, kind="stable")[:, : int(near.sum(axis=1).max(initial=0))]
    kept = np.where(np.take_along_axis(near, keep, 1), np.take_along_axis(scores, keep, 1), np.nan)
    next_rows = {name: np.take_along_axis(value, keep[:, :, None], 1) for name, value in rows.items()}
    return Ranking(names, order.scores, kept, next_rows)


def _next_of(
    replay: _Replay, number: int, last: int, order: _Order, page: NDArray[Any]
) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Run with a choice of what came next at one node.

    Returns:
        The scores of the rows at the last node, [batch, more], and the outputs, whose first rows these are.
    """
    values = replay.choose(number, np.concatenate([page, order.chosen], axis=1)[:, : order.chosen.shape[1]])
    scores = replay.order(last, values).scores
    return (scores[:, : page.shape[1]] if number == last else scores), replay.outputs(values)


@dataclass(frozen=True)
class _Order:
    """What a node chose: the data and the choice, with the axis in which it chooses at the end.

    Attributes:
        data: [batch, elements].
        chosen: [batch, rows], indices of elements.
        is_least: Whether the least ones are chosen.
        is_real: Whether the data are numbers of some precision.
        is_suppression: Whether the chosen ones are what a suppression keeps.
    """

    data: NDArray[Any]
    chosen: NDArray[Any]
    is_least: bool
    is_real: bool
    is_suppression: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether two orders may be equally good: whole numbers have one order, and others are not compared."""
        return self.is_real and bool(np.isfinite(self.scores).all())

    @property
    def scores(self) -> NDArray[Any]:
        """Score of each row, [batch, rows]."""
        return np.take_along_axis(self.data, self.chosen, axis=1)

    @cached_property
    def next(self) -> NDArray[Any]:
        """Indices of what came next, [batch, more]; nothing of a suppression, which drops what another one covers."""
        if self.is_suppression:
            return self.chosen[:, :0]
        rest = self.data.copy() if self.is_least else -self.data
        np.put_along_axis(rest, self.chosen, np.nan, axis=1)  # the last ones of any order
        return np.argsort(rest, axis=1, kind="stable")[:, : rest.shape[1] - self.chosen.shape[1]]

    @property
    def pages(self) -> list[NDArray[Any]]:
        """What came next in parts of at most as many as were chosen, [batch, more]."""
        count = self.chosen.shape[1]
        most = _MOST_PAGES if count > 1 else _PAGES_OF_ONE
        number = min(most, -(-min(max(_NEXT, count), self.next.shape[1]) // count))
        return [self.next[:, page * count : (page + 1) * count] for page in range(number)]


class _Replay:
    """A model in which one ordering node at a time makes the choice that it is given."""

    def __init__(self, source: SourceModel, fed: Tensors, nodes: Sequence[onnx.NodeProto]) -> None:
        self.source, self.fed, self.nodes = source, fed, nodes
        self.watched = [name for node in nodes for name in (_scored(node), _index_output(node))]
        self._sessions: dict[int, Any] = {}
        self.values = self._run(self._session(None), {})

    def outputs(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {name: values[name] for name in self.source.output_names}

    def order(self, number: int, values: Mapping[str, NDArray[Any]] | None = None) -> _Order:
        """Return what a node chose, in the usual run or in another one."""
        values, node = self.values if values is None else values, self.nodes[number]
        if node.op_type == _SUPPRESSION:
            data = values[_scored(node)]
            flat = np.ravel_multi_index(tuple(values[_index_output(node)].T), data.shape).reshape(1, -1)
            return _Order(
                data.astype(np.float64).reshape(1, -1), flat, is_least=False, is_real=True, is_suppression=True
            )
        data, axis = values[node.input[0]], self._axis(number)
        chosen = values[_index_output(node)]
        if node.op_type != "TopK" and chosen.ndim < data.ndim:
            chosen = np.expand_dims(chosen, axis)
        data, chosen = np.moveaxis(data, axis, -1), np.moveaxis(chosen, axis, -1)
        flat = data.astype(np.float64).reshape(-1, data.shape[-1]), chosen.reshape(-1, chosen.shape[-1])
        return _Order(*flat, self._is_least(node), values[node.input[0]].dtype.kind == "f")

    def choose(self, number: int, chosen: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run with the choice of a node, [batch, rows]."""
        node = self.nodes[number]
        usual = self.values[_index_output(node)]
        if number not in self._sessions:
            self._sessions[number] = self._session(number)
        if node.op_type == _SUPPRESSION:
            places = np.unravel_index(chosen.reshape(-1), self.values[_scored(node)].shape)
            return self._run(self._sessions[number], {_index_output(node): np.stack(places, axis=1).astype(np.int64)})
        data, axis = self.values[node.input[0]], self._axis(number)
        sizes = list(data.shape)
        sizes[axis] = chosen.shape[-1]
        moved = np.moveaxis(chosen.reshape([size for at, size in enumerate(sizes) if at != axis] + [-1]), -1, axis)
        return self._run(self._sessions[number], {_index_output(node): moved.reshape(usual.shape).astype(np.int64)})

    def _axis(self, number: int) -> int:
        node = self.nodes[number]
        usual = -1 if node.op_type == "TopK" else 0
        axis = next((one.i for one in node.attribute if one.name == "axis"), usual)
        return int(axis) % self.values[node.input[0]].ndim

    @staticmethod
    def _is_least(node: onnx.NodeProto) -> bool:
        return node.op_type == "ArgMin" or any(one.name == "largest" and one.i == 0 for one in node.attribute)

    def _session(self, number: int | None) -> Any:
        proto = as_declared(self.source)
        for node in _ordering_nodes(proto):
            _name_index(node)
        known = {value.name for value in (*proto.graph.output, *proto.graph.input)}
        extra = [name for name in dict.fromkeys(self.watched) if name not in known]
        if number is not None:
            _replace(proto.graph, self.nodes[number], self.values[_index_output(self.nodes[number])].shape)
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in extra)
        return _session(proto)

    def _run(self, session: Any, more: Tensors) -> dict[str, NDArray[Any]]:
        names = [one.name for one in session.get_outputs() if one.name not in more]
        values = session.run(names, dict(self.fed) | dict(more))
        return dict(self.fed) | dict(zip(names, map(np.asarray, values), strict=True)) | dict(more)


def _scored(node: onnx.NodeProto) -> str:
    """Name what a node orders."""
    return str(node.input[1 if node.op_type == _SUPPRESSION else 0])


def _index_output(node: onnx.NodeProto) -> str:
    """Name the indices of a node; those that nobody reads have a name of ours."""
    place = 1 if node.op_type == "TopK" else 0
    return (node.output[place] if len(node.output) > place else "") or f"{node.output[0]}.index"


def _name_index(node: onnx.NodeProto) -> None:
    if node.op_type == "TopK" and not (len(node.output) > 1 and node.output[1]):
        name = _index_output(node)
        del node.output[1:]
        node.output.append(name)


def _replace(graph: onnx.GraphProto, node: onnx.NodeProto, shape: Sequence[int]) -> None:
    """Make the choice of a node an input of the graph."""
    at = next(place for place, one in enumerate(graph.node) if one.output[:1] == node.output[:1])
    axis = next((one.i for one in node.attribute if one.name == "axis"), -1)
    index = _index_output(node)
    values = onnx.helper.make_node("GatherElements", [node.input[0], index], [node.output[0]], axis=axis)
    del graph.node[at]
    if node.op_type == "TopK" and node.output[0]:
        graph.node.insert(at, values)
    graph.input.append(onnx.helper.make_tensor_value_info(index, onnx.TensorProto.INT64, shape))
    kept = [value for value in graph.output if value.name != index]
    del graph.output[:]
    graph.output.extend(kept)
