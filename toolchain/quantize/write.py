"""Write a quantized network: Q and DQ around each int8 tensor, int8 weights, and biases that leave no ties.

Hardware adds half a step and shifts right, which rounds halves up; ONNX rounds halves to even. A bias that lies a
quarter of the accumulator's unit above a whole number makes the difference vanish: no sum is ever half-way.

The bias is of float32, not of int32 behind a DequantizeLinear: an int32 bias is taken by its bytes wherever a runtime
merges the layer, whatever its scale. ONNX Runtime's own optimizations round the float to the whole number, and lose
nothing but the direction of ties: one step in a layer at most. Without them it computes what hardware does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from toolchain.models import protos
from toolchain.quantize.graph import Graph
from toolchain.quantize.plan import Layer, Plan
from toolchain.quantize.scales import Exponents, rounded

_EXACT = 2**21  # float32 holds whole numbers below it, and a quarter more
_QUARTER = 0.25


@dataclass(frozen=True)
class Written:
    """A network in QDQ form.

    Attributes:
        proto: The model.
        rounded: For each int8 activation of the plan, the tensor that now carries its rounded values.
        inexact: Names of layers whose bias is too large for a quarter: their halves are rounded to even.
    """

    proto: onnx.ModelProto
    rounded: dict[str, str]
    inexact: tuple[str, ...]


def write(graph: Graph, plan: Plan, exponents: Exponents, biases: dict[str, NDArray[Any]]) -> Written:
    """Write a network in QDQ form.

    Args:
        graph: The float network; it is not changed.
        plan: The layers to quantize.
        exponents: The scales.
        biases: For each layer's convolution tensor its bias, one number for each output channel.
    """
    writer = _QdqWriter(graph, plan, exponents, biases)
    return Written(writer.run(), writer.rounded, tuple(writer.inexact))


class _QdqWriter:
    def __init__(self, graph: Graph, plan: Plan, exponents: Exponents, biases: dict[str, NDArray[Any]]) -> None:
        self._graph = graph
        self._exponents = exponents
        self._biases = biases
        self._layers = {layer.conv: layer for layer in plan.layers}
        self._taken = {*graph.makers, *graph.weights, *(value.name for value in graph.proto.graph.input)}
        # A result of the graph keeps its name for the rounded tensor; the tensor before gets another name.
        results = {name for name in plan.tensors if name in graph.outputs and name in graph.makers}
        self._source_names = {
            name: self._free_name(f"{name}.exact") if name in results else name for name in plan.tensors
        }
        self.rounded = {name: name if name in results else self._free_name(f"{name}.rounded") for name in plan.tensors}
        self.inexact: list[str] = []
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._shared_names: dict[str, str] = {}

    def _free_name(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def run(self) -> onnx.ModelProto:
        for value in self._graph.proto.graph.input:
            self._add_rounding(value.name)
        for node in self._graph.nodes:
            self._copy(node)
        model = onnx.ModelProto()
        model.CopyFrom(self._graph.proto)
        for field in (model.graph.node, model.graph.initializer, model.graph.value_info):
            del field[:]
        model.graph.node.extend(self._nodes)
        used = set(protos.names_read(model.graph))
        weights = [*self._graph.proto.graph.initializer, *self._weights.values()]
        model.graph.initializer.extend(tensor for tensor in weights if tensor.name in used)
        return model

    def _copy(self, node: onnx.NodeProto) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for index, name in enumerate(node.input):
            copy.input[index] = self.rounded.get(name, name)
        for index, name in enumerate(node.output):
            copy.output[index] = self._source_names.get(name, name)
        if node.output[0] in self._layers:
            layer = self._layers[node.output[0]]
            del copy.input[1:]
            copy.input.extend([self._weight(layer), self._bias(layer)])
        self._nodes.append(copy)
        for name in node.output:
            self._add_rounding(name)

    def _add_rounding(self, name: str) -> None:
        if name not in self.rounded:
            return
        grid = self._exponents.activations[name]
        scale = [self._scale(grid.exponent), self._zero(grid.zero)]
        data = self._free_name(f"{name}.int8")
        self._add_node("QuantizeLinear", [self._source_names[name], *scale], data)
        self._add_node("DequantizeLinear", [data, *scale], self.rounded[name])

    def _add_node(self, operator: str, inputs: list[str], output: str) -> None:
        self._nodes.append(helper.make_node(operator, inputs, [output], output))

    def _scale(self, exponent: int) -> str:
        return self._constant(f"scale_{exponent}", np.ldexp(np.float32(1), exponent))

    def _zero(self, point: int = 0) -> str:
        return self._constant(f"zero_{point}_int8" if point else "zero_int8", np.int8(point))

    def _constant(self, key: str, value: Any) -> str:
        """Return the name of a new initializer, the same for the same key."""
        if key not in self._shared_names:
            name = self._shared_names[key] = self._free_name(key)
            self._weights[name] = numpy_helper.from_array(np.asarray(value), name)
        return self._shared_names[key]

    def _weight(self, layer: Layer) -> str:
        """Return the tensor of a layer's rounded weights; layers may share one."""
        key = f"{layer.weight}.rounded"
        if key not in self._shared_names:
            exponents = self._exponents.weights[layer.weight]
            data = self._constant(f"{layer.weight}.int8", rounded(self._graph.array(layer.weight), exponents))
            output = self._shared_names[key] = self._free_name(key)
            if len(exponents) == 1:
                self._add_node("DequantizeLinear", [data, self._scale(exponents[0]), self._zero()], output)
            else:
                # One scale for each output channel, which are the first axis.
                scale = self._constant(f"{data}.scales", np.ldexp(np.float32(1), np.array(exponents, np.int32)))
                zero = self._constant(f"zeros_{len(exponents)}_int8", np.zeros(len(exponents), np.int8))
                inputs = [data, scale, zero]
                self._nodes.append(helper.make_node("DequantizeLinear", inputs, [output], output, axis=0))
        return self._shared_names[key]

    def _bias(self, layer: Layer) -> str:
        # A quarter of a unit above an integer, so that no sum lies half-way between two steps.
        unit = np.array(self._exponents.accumulator(layer))
        steps = np.rint(np.ldexp(self._biases[layer.conv], -unit))
        exact = bool(np.abs(steps).max(initial=0) < _EXACT)
        if not exact:
            self.inexact.append(layer.name)
        value = np.ldexp(steps + (_QUARTER if exact else 0), unit).astype(np.float32)
        return self._constant(f"{layer.conv}.bias", value)
