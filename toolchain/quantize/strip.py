"""Models that are quantized already: whether hardware with shifts can take them, and their way back to floats.

Operators that compute on bytes themselves, as ONNX Runtime's QOperator form has them, become QDQ form first: the
operator on numbers, with DequantizeLinear before it and QuantizeLinear behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from toolchain.errors import InputError
from toolchain.quantize.ranges import Range, of_grid

_MICROSOFT = "com.microsoft"
_OWN = frozenset({"channels_last", "opset", "consumed_inputs"})  # attributes that the operator on numbers lacks

_CONCAT = "QLinearConcat"
_TRIPLE = 3
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_INTEGER_OPERATORS = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "QGemm", "MatMulNBits"})
_INTEGER_PREFIXES = ("QLinear", "DynamicQuantize")
_CLIP_OF_INPUTS = 11  # the opset from which on a clip has its bounds as inputs
_SIGNED = (onnx.TensorProto.INT8, onnx.TensorProto.INT32)  # activations and weights, and biases
# Operators whose ReLU or clip a quantizer drops, as the zero point at the lowest byte has the same effect.
_MOVING = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Identity"}
)  # their results have the numbers of their inputs
_NOT_NEGATIVE = Range(0.0, float("inf"))
_UNBOUNDED = frozenset({"Conv", "Add", "Sum", "Gemm", "MatMul", "ConvTranspose", "BatchNormalization", "Mul"})


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


def has_qoperators(proto: onnx.ModelProto) -> bool:
    """Whether a model has such operators."""
    return any(node.op_type in {*_FORMS, _CONCAT} for node in proto.graph.node)


def expand_qoperators(proto: onnx.ModelProto) -> None:
    """Write such operators in QDQ form, in place.

    One whose grids are no constants stays as it is, as does one on images with their channels last.
    """
    if has_qoperators(proto):
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


def has_pairs(proto: onnx.ModelProto) -> bool:
    """Whether a model has QuantizeLinear or DequantizeLinear nodes."""
    return any(node.op_type in {_QUANTIZE, _DEQUANTIZE} for node in proto.graph.node)


def is_shiftable(proto: onnx.ModelProto) -> bool:
    """Whether all of a model's Q/DQ nodes are of int8, with a power of two as their scale.

    Constants may have one for each place along their first axis, and have 0 as their zero point. The constants of the
    model must be initializers.
    """
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    pairs = [node for node in proto.graph.node if node.op_type in {_QUANTIZE, _DEQUANTIZE}]
    return any(node.op_type == _QUANTIZE for node in pairs) and all(_is_shift(node, weights) for node in pairs)


def _is_shift(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> bool:
    scale = weights.get(node.input[1])
    if scale is None:
        return False
    scales = numpy_helper.to_array(scale)
    # frexp returns mantissas from 0.5 on: that of a power of two is 0.5.
    if not scales.size or not (scales > 0).all() or not (np.frexp(scales)[0] == 0.5).all():  # noqa: PLR2004
        return False
    along_first = any(attribute.name == "axis" and attribute.i == 0 for attribute in node.attribute)
    if scales.size != 1 and not (node.input[0] in weights and along_first):
        return False
    if len(node.input) > 2 and node.input[2]:  # noqa: PLR2004 - the third input is the zero point
        zero = weights.get(node.input[2])
        if zero is None or zero.data_type not in _SIGNED:
            return False
        value = numpy_helper.to_array(zero)
        return not value.any() or (value.size == 1 and node.input[0] not in weights)
    constant = weights.get(node.input[0])  # without a zero point, activations are unsigned
    return node.op_type == _DEQUANTIZE and constant is not None and constant.data_type in _SIGNED


def check_operators(proto: onnx.ModelProto, name: str) -> None:
    """Refuse a model whose nodes compute with integers themselves.

    Raises:
        InputError: There are such nodes; they are named.
    """
    nodes = [
        f"{node.op_type} {node.name or node.output[0]!r}"
        for node in proto.graph.node
        if node.op_type in _INTEGER_OPERATORS or node.op_type.startswith(_INTEGER_PREFIXES)
    ]
    if nodes:
        raise InputError(
            f"{name} has {len(nodes)} node(s) that compute with integers: it is quantized in an unsupported form",
            details="\n".join(nodes[:20]),
            hint="pass the original float model, or a model in QDQ form",
        )


def strip(proto: onnx.ModelProto, name: str) -> dict[str, Range] | None:
    """Turn a quantized model back into one on floats, in place.

    Returns:
        The ranges that it says of activations, by tensor; None if it was on floats already.

    Raises:
        InputError: Its nodes compute with integers in a way that is not known here, or an input or output is of
            integers.
    """
    expand_qoperators(proto)
    check_operators(proto, name)
    if not has_pairs(proto):
        return None
    version = max((opset.version for opset in proto.opset_import if opset.domain in {"", "ai.onnx"}), default=1)
    stripper = _Stripper(proto.graph, name, clips=version >= _CLIP_OF_INPUTS)
    stripper.run()
    return stripper.ranges


class _Stripper:
    """Rewrites one graph. A `carried` tensor had integers and has now the numbers that they stood for."""

    def __init__(self, graph: onnx.GraphProto, name: str, *, clips: bool) -> None:
        self._graph = graph
        self._clips = clips
        self._name = name
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node.op_type for node in graph.node for name in node.output}
        self._alias: dict[str, str] = {}
        self._carried: set[str] = set()
        self._nodes: list[onnx.NodeProto] = []
        self._grids: dict[str, Range] = {}  # of the bytes of a tensor
        self._implied: dict[str, Range] = {}  # by the operator that computes a tensor

    @property
    def ranges(self) -> dict[str, Range]:
        """The ranges of tensors, where they are known."""
        ranges = {name: self._range(name) for name in {**self._implied, **self._grids}}
        return {
            name: interval for name, interval in ranges.items() if interval is not None and np.isfinite(interval.high)
        }

    def run(self) -> None:
        steps = {_QUANTIZE: self._drop_quantize, _DEQUANTIZE: self._drop_dequantize}
        for node in list(self._graph.node):
            steps.get(node.op_type, self._keep)(node)
        for value in self._graph.output:
            if value.name in self._carried:
                raise self._error(value.name, "a result")
            if value.name in self._alias:
                self._nodes.append(helper.make_node("Identity", [self._alias[value.name]], [value.name], value.name))
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        # Types of tensors that were bytes are wrong now.
        del self._graph.value_info[:]

    def _error(self, tensor: str, role: str) -> InputError:
        return InputError(
            f"{self._name} has {tensor!r}, {role} of integers, so the float values cannot be restored",
            hint="pass the original float model",
        )

    def _drop_quantize(self, node: onnx.NodeProto) -> None:
        source, result = node.input[0], node.output[0]
        origin = self._alias.get(source, source)
        self._carried.add(result)
        # The quantizer dropped a ReLU or clip, whose work the lowest byte did: it has to come back.
        if self._makers.get(source) in _UNBOUNDED and self._starts_at_zero(node):
            self._keep_grid(result, node)
            self._add_bounds(origin, result)
        else:
            self._alias[result] = origin
            self._keep_grid(origin, node)

    def _add_bounds(self, origin: str, result: str) -> None:
        """Bound a tensor as its bytes did: without an upper bound, a hard swish would grow with the square."""
        interval = self._grids.get(result)
        if interval is None or not self._clips:
            self._nodes.append(helper.make_node("Relu", [origin], [result], f"{result}.relu"))
            return
        names = [f"{result}.{end}" for end in ("low", "high")]
        for name, end in zip(names, (0.0, interval.high), strict=True):
            self._graph.initializer.append(numpy_helper.from_array(np.float32(end), name))
        self._nodes.append(helper.make_node("Clip", [origin, *names], [result], f"{result}.clip"))

    def _keep_grid(self, tensor: str, node: onnx.NodeProto) -> None:
        """Keep the range of a tensor's grid; of two grids, their union."""
        scale, *zero = (self._weights.get(name) for name in node.input[1:3] if name)
        if scale is None or None in zero:
            return
        middle = numpy_helper.to_array(zero[0]) if zero and zero[0] is not None else np.uint8(0)
        interval = of_grid(numpy_helper.to_array(scale), np.asarray(middle))
        if interval is not None:
            self._grids[tensor] = interval.union(self._grids.get(tensor))

    def _range(self, tensor: str) -> Range | None:
        grid, implied = self._grids.get(tensor), self._implied.get(tensor)
        return grid.within(implied) if grid and implied else grid or implied

    def _starts_at_zero(self, node: onnx.NodeProto) -> bool:
        zero = self._weights.get(node.input[2]) if len(node.input) > 2 else None  # noqa: PLR2004 - the zero point
        if zero is None:
            return True  # unsigned, from 0
        value = np.asarray(numpy_helper.to_array(zero))
        return value.dtype.kind in "iu" and value.size == 1 and value.item() == np.iinfo(value.dtype).min

    def _drop_dequantize(self, node: onnx.NodeProto) -> None:
        source, result = node.input[0], node.output[0]
        if source in self._weights:
            tensor = numpy_helper.from_array(self._dequantize(node), result)
            self._graph.initializer.append(tensor)
        elif source in self._carried:
            self._alias[result] = self._alias.get(source, source)
        else:
            raise self._error(source, "an input")

    def _dequantize(self, node: onnx.NodeProto) -> NDArray[np.float32]:
        values, scale, *zero = (np.asarray(numpy_helper.to_array(self._weights[name])) for name in node.input if name)
        # Scales of blocks within a channel have more than one axis.
        if scale.ndim > 1:
            raise self._error(node.input[0], "a weight in blocks")
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        shape = [1] * values.ndim
        if scale.size > 1:
            shape[axis] = scale.size
        offset = zero[0].astype(np.float32).reshape(shape) if zero else np.float32(0)
        floats: NDArray[np.float32] = (values.astype(np.float32) - offset) * scale.astype(np.float32).reshape(shape)
        return floats

    def _keep(self, node: onnx.NodeProto) -> None:
        if any(name in self._carried for name in node.input):
            self._carried.update(node.output)
        source = self._alias.get(node.input[0], node.input[0]) if node.input else ""
        interval = self._range(source)
        if node.op_type == "Relu":
            self._implied[node.output[0]] = _NOT_NEGATIVE.within(interval)
        elif node.op_type in _MOVING and interval is not None:
            self._implied.update(dict.fromkeys(node.output, interval))
        for index, name in enumerate(node.input):
            node.input[index] = self._alias.get(name, name)
        self._nodes.append(node)
