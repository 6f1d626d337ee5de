"""Models that are quantized already: whether hardware with shifts can take them, and their way back to floats."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from toolchain.errors import InputError
from toolchain.quantize import qoperators
from toolchain.quantize.ranges import Range, of_grid

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


def has_pairs(proto: onnx.ModelProto) -> bool:
    """Whether a model has QuantizeLinear or DequantizeLinear nodes."""
    return any(node.op_type in {_QUANTIZE, _DEQUANTIZE} for node in proto.graph.node)


def is_shiftable(proto: onnx.ModelProto) -> bool:
    """Whether all of a model's Q/DQ nodes are of int8, with a power of two as their scale.

    Constants may have one for each place along their first axis, and have 0 as their zero point.

    Args:
        proto: A model whose constants are initializers.
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
    qoperators.expand(proto)
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
