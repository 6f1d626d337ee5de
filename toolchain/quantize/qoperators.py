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
    """The order of an operator's inputs.

    Attributes:
        operator: The operator on numbers.
        data: Indices of the tensors that it reads, each with scale and zero point behind it.
        result: Index of the scale of its result, with the zero point behind it.
        weight: The number of the tensor that has scales along an axis, and that axis; None without such a tensor.
        bias: Index of the bias, whose unit is the product of the first two scales; 0 if there is none.
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
            if node.op_type == _CONCAT and self._has_constants(node, [0, *range(_TRIPLE, len(node.input), _TRIPLE)]):
                triples = [list(node.input[first : first + _TRIPLE]) for first in range(2, len(node.input), _TRIPLE)]
                inputs = [self._dequantize(node, triple, None) for triple in triples]
                concat = helper.make_node("Concat", inputs, [], node.name)
                concat.attribute.extend(node.attribute)
                self._add_rounded(node, concat, 0)
            elif form is not None and self._is_expandable(node, form):
                self._expand(node, form)
            else:
                self._nodes.append(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)

    def _is_expandable(self, node: onnx.NodeProto, form: _Form) -> bool:
        last = any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
        is_complete = len(node.input) >= form.data[-1] + _TRIPLE
        return is_complete and not last and self._has_constants(node, [first + 1 for first in form.data])

    def _has_constants(self, node: onnx.NodeProto, scales: list[int]) -> bool:
        """Whether the scales at some positions, and the zero points behind them, are constants where they exist."""
        positions = [position for scale in scales for position in (scale, scale + 1)]
        return all(node.input[position] in self._weights for position in positions if _has(node, position))

    def _expand(self, node: onnx.NodeProto, form: _Form) -> None:
        inputs = []
        for number, first in enumerate(form.data):
            axis = None
            if form.weight and form.weight[0] == number:
                # The axis of the output channels moves where the weight is transposed.
                transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
                axis = 0 if transposed else form.weight[1]
            inputs.append(self._dequantize(node, list(node.input[first : first + _TRIPLE]), axis))
        if form.bias and _has(node, form.bias):
            inputs.append(self._dequantize_bias(node, form))
        float_node = helper.make_node(form.operator, inputs, [], node.name)
        float_node.attribute.extend(attribute for attribute in node.attribute if attribute.name not in _OWN)
        self._add_rounded(node, float_node, form.result)

    def _add_rounded(self, node: onnx.NodeProto, float_node: onnx.NodeProto, result: int) -> None:
        """Add an operator on numbers, and the rounding of its result where it has a grid."""
        if not _has(node, result):
            float_node.output.append(node.output[0])
            self._nodes.append(float_node)
            return
        numbers = self._free_name(f"{node.output[0]}.numbers")
        float_node.output.append(numbers)
        self._nodes.append(float_node)
        grid = [name for name in node.input[result : result + 2] if name]
        self._nodes.append(helper.make_node("QuantizeLinear", [numbers, *grid], [node.output[0]]))

    def _dequantize(self, node: onnx.NodeProto, triple: list[str], axis: int | None) -> str:
        output = self._free_name(f"{triple[0]}.of.{node.output[0]}")
        inputs, attributes = [name for name in triple if name], {} if axis is None else {"axis": axis}
        self._nodes.append(helper.make_node("DequantizeLinear", inputs, [output], **attributes))
        return output

    def _dequantize_bias(self, node: onnx.NodeProto, form: _Form) -> str:
        first, second = (numpy_helper.to_array(self._weights[node.input[index + 1]]) for index in form.data[:2])
        factor = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
        unit = np.asarray(np.float32(factor) * first.reshape(-1) * second.reshape(-1), np.float32)
        name = self._free_name(f"{node.output[0]}.unit")
        scale = numpy_helper.from_array(unit if unit.size > 1 else unit.reshape(()), name)
        self._graph.initializer.append(scale)
        self._weights[name] = scale
        return self._dequantize(node, [node.input[form.bias], name], 0)

    def _free_name(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _has(node: onnx.NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])
