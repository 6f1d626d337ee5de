"""Operators that compute on bytes themselves, as ONNX Runtime's QOperator form has them, in QDQ form.

Each is the operator on numbers, with DequantizeLinear before it and QuantizeLinear behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

_MICROSOFT = "com.microsoft"
_OWN = frozenset({"channels_last", "opset", "consumed_inputs"})  # attributes that the operator on numbers lacks


@dataclass(frozen=True)
class _Form:
    """Where an operator has what.

    Attributes:
        operator: The operator on numbers.
        data: First places of the tensors that it reads, each with scale and zero point behind it.
        result: Place of the scale of its result, with the zero point behind it.
        weight: Which of `data` has scales along an axis, and which axis; None if none has.
        bias: Place of the bias, whose unit is the product of the first two scales; 0 if there is none.
    """

    operator: str
    data: tuple[int, ...]
    result: int
    weight: tuple[int, int] | None = None
    bias: int = 0


_FORMS: Mapping[str, _Form] = {
    "QLinearConv": _Form("Conv", (0, 3), 6, weight=(1, 0), bias=8),
    "QLinearMatMul": _Form("MatMul", (0, 3), 6, weight=(1, 1)),
    "QGemm": _Form("Gemm", (0, 3), 7, weight=(1, 1), bias=6),
    "QLinearAdd": _Form("Add", (0, 3), 6),
    "QLinearMul": _Form("Mul", (0, 3), 6),
    "QLinearSigmoid": _Form("Sigmoid", (0,), 3),
    "QLinearLeakyRelu": _Form("LeakyRelu", (0,), 3),
    "QLinearSoftmax": _Form("Softmax", (0,), 3),
    "QLinearAveragePool": _Form("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool", (0,), 3),
}
_CONCAT = "QLinearConcat"
_TRIPLE = 3


def are_in(proto: onnx.ModelProto) -> bool:
    """Whether a model has such operators."""
    return any(node.op_type in {*_FORMS, _CONCAT} for node in proto.graph.node)


def expand(proto: onnx.ModelProto) -> None:
    """Write such operators in QDQ form, in place.

    One whose grids are no constants stays as it is, as does one on images with their channels last.
    """
    if are_in(proto):
        _Expander(proto.graph).run()


class _Expander:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        self._taken = {name for node in graph.node for name in (*node.input, *node.output)} | set(self._weights)

    def run(self) -> None:
        for node in self._graph.node:
            form = _FORMS.get(node.op_type)
            if node.op_type == _CONCAT and self._is_known(node, [0, *range(_TRIPLE, len(node.input), _TRIPLE)]):
                parts = [list(node.input[first : first + _TRIPLE]) for first in range(2, len(node.input), _TRIPLE)]
                made = helper.make_node(
                    "Concat", [self._dequantized(node, part, None) for part in parts], [], node.name
                )
                made.attribute.extend(node.attribute)
                self._rounded(node, made, 0)
            elif form is not None and self._is_possible(node, form):
                self._expanded(node, form)
            else:
                self._nodes.append(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)

    def _is_possible(self, node: onnx.NodeProto, form: _Form) -> bool:
        last = any(one.name == "channels_last" and one.i for one in node.attribute)
        whole = len(node.input) >= form.data[-1] + _TRIPLE
        return whole and not last and self._is_known(node, [first + 1 for first in form.data])

    def _is_known(self, node: onnx.NodeProto, scales: list[int]) -> bool:
        """Whether scales and the zero points behind them are constants, where there are any."""
        places = [place for scale in scales for place in (scale, scale + 1)]
        return all(node.input[place] in self._weights for place in places if _has(node, place))

    def _expanded(self, node: onnx.NodeProto, form: _Form) -> None:
        inputs = []
        for number, first in enumerate(form.data):
            axis = _axis(node, form) if form.weight and form.weight[0] == number else None
            inputs.append(self._dequantized(node, list(node.input[first : first + _TRIPLE]), axis))
        if form.bias and _has(node, form.bias):
            inputs.append(self._bias(node, form))
        kept = [one for one in node.attribute if one.name not in _OWN]
        made = helper.make_node(form.operator, inputs, [], node.name)
        made.attribute.extend(kept)
        self._rounded(node, made, form.result)

    def _rounded(self, node: onnx.NodeProto, made: onnx.NodeProto, result: int) -> None:
        """Add an operator on numbers, and the rounding of its result where it has a grid."""
        if not _has(node, result):
            made.output.append(node.output[0])
            self._nodes.append(made)
            return
        numbers = self._free(f"{node.output[0]}.numbers")
        made.output.append(numbers)
        self._nodes.append(made)
        grid = [name for name in node.input[result : result + 2] if name]
        self._nodes.append(helper.make_node("QuantizeLinear", [numbers, *grid], [node.output[0]]))

    def _dequantized(self, node: onnx.NodeProto, triple: list[str], axis: int | None) -> str:
        name = self._free(f"{triple[0]}.of.{node.output[0]}")
        along = {} if axis is None else {"axis": axis}
        self._nodes.append(helper.make_node("DequantizeLinear", [one for one in triple if one], [name], **along))
        return name

    def _bias(self, node: onnx.NodeProto, form: _Form) -> str:
        first, second = (numpy_helper.to_array(self._weights[node.input[place + 1]]) for place in form.data[:2])
        factor = next((one.f for one in node.attribute if one.name == "alpha"), 1.0)
        unit = np.asarray(np.float32(factor) * first.reshape(-1) * second.reshape(-1), np.float32)
        name = self._free(f"{node.output[0]}.unit")
        scale = numpy_helper.from_array(unit if unit.size > 1 else unit.reshape(()), name)
        self._graph.initializer.append(scale)
        self._weights[name] = scale
        return self._dequantized(node, [node.input[form.bias], name], 0)

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _has(node: onnx.NodeProto, place: int) -> bool:
    return place < len(node.input) and bool(node.input[place])


def _axis(node: onnx.NodeProto, form: _Form) -> int:
    """Return the axis of the output channels of a weight."""
    transposed = any(one.name == "transB" and one.i for one in node.attribute)
    return 0 if transposed else (form.weight or (0, 0))[1]
