"""Operators over rows, on matrices of many shapes: alone, and followed by element-wise readers, all in one network.

A network of many independent parts is compiled at once, which takes a fraction of what its parts take one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 23  # the first with RMSNormalization
READERS = (0, 1, 2)
MOST = 70
"""Rows, and elements of a row: more than four vectors of AVX-512."""

_WRONG_BEFORE = [(17, 3), (50, 49)]
"""Shapes with which a layer norm and a softmax with a reader have been wrong."""


@dataclass
class _Network:
    """A network in the making."""

    dtype: str
    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    prefix: str = ""

    def input(self, shape: Sequence[int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(f"{self.prefix}x", self._type, shape))
        return self.inputs[-1].name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{self.prefix}v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def output(self, name: str, dtype: int | None = None) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype or self._type, None))

    def constant(self, value: object, dtype: str = "") -> str:
        name = f"{self.prefix}w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name))
        return name

    def scale(self, size: int) -> str:
        return self.constant(self.random.uniform(0.5, 1.5, size))

    def shaped(self, name: str, *shape: int) -> str:
        return self.node("Reshape", name, self.constant(shape, "int64"))

    @property
    def _type(self) -> int:
        return helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "rows", self.inputs, self.outputs, self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


_Operator = Callable[[_Network, str, int, int], str]


def _simple(kind: str, **attributes: object) -> _Operator:
    return lambda net, x, _rows, _length: net.node(kind, x, **attributes)


def _reduced(kind: str, axis: int) -> _Operator:
    return lambda net, x, _rows, _length: net.node(kind, x, net.constant([axis], "int64"), keepdims=1)


def _layer_norm(net: _Network, x: str, _rows: int, length: int) -> str:
    return net.node("LayerNormalization", x, net.scale(length), net.scale(length), axis=-1)


def _layer_norm_without_bias(net: _Network, x: str, _rows: int, length: int) -> str:
    return net.node("LayerNormalization", x, net.scale(length), axis=-1)


def _rms_norm(net: _Network, x: str, _rows: int, length: int) -> str:
    return net.node("RMSNormalization", x, net.scale(length), axis=-1)


def _instance_norm(net: _Network, x: str, rows: int, length: int) -> str:
    images = net.shaped(x, 1, rows, length)
    return net.shaped(net.node("InstanceNormalization", images, net.scale(rows), net.scale(rows)), rows, length)


def _group_norm(net: _Network, x: str, rows: int, length: int) -> str:
    groups = max(number for number in (1, 2, 3, 5, 7) if rows % number == 0)
    images = net.shaped(x, 1, rows, length)
    normal = net.node("GroupNormalization", images, net.scale(rows), net.scale(rows), num_groups=groups)
    return net.shaped(normal, rows, length)


def _greatest_of_softmax(net: _Network, x: str, _rows: int, _length: int) -> str:
    return net.node("ReduceMax", net.node("Softmax", x, axis=-1), net.constant([-1], "int64"), keepdims=1)


MEAN_VARIANCE = "mean and variance"
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")

OPERATORS: dict[str, _Operator] = {
    "softmax": _simple("Softmax", axis=-1),
    "softmax of columns": _simple("Softmax", axis=0),
    "log-softmax": _simple("LogSoftmax", axis=-1),
    "layer norm": _layer_norm,
    "layer norm without bias": _layer_norm_without_bias,
    "rms norm": _rms_norm,
    "instance norm": _instance_norm,
    "group norm": _group_norm,
    "l1 norm": _simple("LpNormalization", axis=-1, p=1),
    "l2 norm": _simple("LpNormalization", axis=-1, p=2),
    MEAN_VARIANCE: _simple("MeanVarianceNormalization", axes=[1]),
    "greatest of softmax": _greatest_of_softmax,
    **{f"reduce {kind.lower()}": _reduced(f"Reduce{kind}", -1) for kind in _REDUCTIONS},
    **{f"reduce {kind.lower()} of columns": _reduced(f"Reduce{kind}", 0) for kind in ("Sum", "Max")},
    "argmax": _simple("ArgMax", axis=-1),
    "argmin": _simple("ArgMin", axis=-1),
    "argmax of columns": _simple("ArgMax", axis=0),
}
"""What is computed of a matrix x of some rows, by name."""

_POSITIVE = {"reduce logsum", "reduce prod"}  # of which logarithms and long products need numbers near 1


@dataclass(frozen=True)
class Case:
    """An operator on a matrix, with so many element-wise readers behind it."""

    operator: str
    rows: int
    length: int
    readers: int

    def is_defined(self, dtype: str) -> bool:
        """Whether the operator is defined here: ONNX's own function for MeanVarianceNormalization is for float32.

        ONNX Runtime divides by the deviation without its epsilon, and a single element has none.
        """
        return self.operator != MEAN_VARIANCE or (dtype == "float32" and self.length > 1)

    def __str__(self) -> str:
        return f"{self.operator} of {self.rows} x {self.length}, {self.readers} readers"


def shapes(seed: int) -> list[tuple[int, int]]:
    """Return all shapes in a random order, but those first that have been wrong."""
    numbers = np.random.default_rng(seed).permutation(MOST * MOST)
    others = [(1 + int(number) // MOST, 1 + int(number) % MOST) for number in numbers]
    return [*_WRONG_BEFORE, *(shape for shape in others if shape not in _WRONG_BEFORE)]


def network(cases: Iterable[Case], dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[Case]]:
    """Return a network of many cases, its inputs, and the case of each of its outputs."""
    net, feeds, owners = _Network(dtype, np.random.default_rng(3)), {}, []
    for number, case in enumerate(cases):
        net.prefix = f"c{number}_"
        x = net.input((case.rows, case.length))
        feeds[x] = _matrix(net.random, case).astype(dtype)
        result = OPERATORS[case.operator](net, x, case.rows, case.length)
        _read(net, x, result, case)
        owners += [case] * (len(net.outputs) - len(owners))
    return net.model(), feeds, owners


def _matrix(random: np.random.Generator, case: Case) -> np.ndarray:
    """Return numbers of which no two in a row are close, so that half precision has the same order."""
    spread = np.linspace(-2, 2, case.length) if case.length > 1 else np.array([0.7])
    matrix = random.permuted(np.tile(spread, (case.rows, 1)), axis=1)
    matrix = matrix + random.uniform(-2, 2, (case.rows, 1))
    return np.exp(matrix / 16) if case.operator in _POSITIVE else matrix


def _read(net: _Network, x: str, result: str, case: Case) -> None:
    """Add the readers; what is computed without any is the network's own output."""
    is_place = case.operator.startswith("arg")
    if not case.readers:
        net.output(result, onnx.TensorProto.INT64 if is_place else None)
        return
    number = net.node("Cast", result, to=net._type) if is_place else result
    guarded = net.node("Where", net.node("IsNaN", number), net.constant(0), number)
    if case.readers == 1:
        net.output(guarded)
        return
    net.output(net.node("Relu", guarded))
    net.output(net.node("Sub", x, guarded))
