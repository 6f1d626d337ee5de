"""Which convolutions become int8, what each takes along, and which tensors lie between them as bytes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import onnx

from toolchain.errors import InputError, did_you_mean
from toolchain.quantize.graph import Graph, title


@dataclass(frozen=True)
class Layer:
    """A convolution with the operations before its sums are rounded to int8: an addition, a ReLU or a clip.

    Attributes:
        name: The convolution's name.
        conv: The tensor that the convolution itself makes.
        input: The tensor that it reads.
        weight: Its weight.
        bias: Its bias; empty if there is none.
        residual: The tensor that is added; empty if there is none.
        output: The tensor at the end.
        clipped: Whether a clip ends it.
    """

    name: str
    conv: str
    input: str
    weight: str
    bias: str
    residual: str
    output: str
    clipped: bool

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that are of int8 for this layer's sake."""
        return tuple(name for name in (self.input, self.residual, self.output) if name)


@dataclass(frozen=True)
class Plan:
    """The layers of a network, in order, and names of the convolutions that stay on floats."""

    layers: tuple[Layer, ...]
    left: tuple[str, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The int8 activations, each once, in the order of their use."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.tensors))


def quantizable(graph: Graph, exclude: Collection[str] = ()) -> list[onnx.NodeProto]:
    """Return the convolutions that can become int8, in order.

    Args:
        graph: A float network without batch norm.
        exclude: Names of convolutions to leave on floats.
    """
    convolutions = [node for node in graph.nodes if node.op_type == "Conv" and title(node) not in exclude]
    return [node for node in convolutions if all(graph.is_float(name) for name in node.input[1:] if name)]


def plan(graph: Graph, exclude: Collection[str], model: str) -> Plan:
    """Choose the convolutions to quantize.

    Args:
        graph: A float network without batch norm.
        exclude: Names of convolutions to leave on floats.
        model: What messages call it.

    Raises:
        InputError: No convolution is left to quantize, or `exclude` has an unknown name.
    """
    convolutions = [node for node in graph.nodes if node.op_type == "Conv"]
    names = [title(node) for node in convolutions]
    for name in exclude:
        if name not in names:
            hint = did_you_mean(name, names) or "run `toolchain quantize` without --exclude to list the layers"
            raise InputError(f"{model} has no convolution {name!r} to exclude", hint=hint)
    chosen = quantizable(graph, exclude)
    if not chosen:
        raise InputError(
            f"{model} has no convolution to quantize",
            details="convolutions whose weights are not constant float32 are not quantized",
            hint="list its operators: `toolchain inspect model`",
        )
    float_layers = tuple(name for name in names if name not in {title(node) for node in chosen})
    return Plan(_LayerFinder(graph, chosen, _depths(graph)).layers(), float_layers)


def _depths(graph: Graph) -> dict[str, int]:
    """Return for each tensor how many convolutions are on the longest way to it, its own included."""
    depths: dict[str, int] = {}
    for node in graph.nodes:
        before = max((depths.get(name, 0) for name in node.input), default=0)
        depths.update(dict.fromkeys(node.output, before + (node.op_type == "Conv")))
    return depths


class _LayerFinder:
    """Follows each convolution to the tensor at which it is rounded."""

    def __init__(self, graph: Graph, chosen: list[onnx.NodeProto], depths: dict[str, int]) -> None:
        self._graph = graph
        self._depths = depths
        self._chosen = {node.output[0]: node for node in chosen}

    def layers(self) -> tuple[Layer, ...]:
        return tuple(map(self._layer, self._chosen.values()))

    def _layer(self, node: onnx.NodeProto) -> Layer:
        conv, residual, clipped = node.output[0], "", False
        output = conv
        addition = self._addition(conv)
        if addition is not None:
            residual, output = self._other(addition, conv), addition.output[0]
        activation = self._graph.only_reader(output)
        if activation is not None and self._is_activation(activation):
            output, clipped = activation.output[0], activation.op_type == "Clip"
        bias = node.input[2] if len(node.input) > 2 else ""  # noqa: PLR2004 - Conv's third input is its bias
        return Layer(title(node), conv, node.input[0], node.input[1], bias, residual, output, clipped)

    def _addition(self, conv: str) -> onnx.NodeProto | None:
        """Return the addition that a convolution's sums go on into, if it alone reads them and they come first."""
        node = self._graph.only_reader(conv)
        if node is None or node.op_type != "Add":
            return None
        other = self._other(node, conv)
        shapes = self._graph.shapes
        # VTA adds tensors of one shape alone: no broadcast.
        same_shape = conv in shapes and shapes.get(other) == shapes[conv]
        if other in self._graph.weights or not same_shape:
            return None
        # Where both operands are sums of convolutions, one of the two takes the addition along.
        competes = other in self._chosen and self._graph.only_reader(other) is not None
        return node if not competes or self._rank(conv, node) > self._rank(other, node) else None

    def _rank(self, conv: str, addition: onnx.NodeProto) -> tuple[int, int, int]:
        """Order two convolutions that are added: the deeper branch, the larger window, the first operand wins."""
        window = math.prod(self._graph.weights[self._chosen[conv].input[1]].dims[2:])
        return self._depths[conv], window, -list(addition.input).index(conv)

    @staticmethod
    def _other(addition: onnx.NodeProto, conv: str) -> str:
        first, second = addition.input
        return str(second if first == conv else first)

    def _is_activation(self, node: onnx.NodeProto) -> bool:
        """Whether a node is a ReLU, or a clip from 0 to a constant."""
        if node.op_type != "Clip":
            return bool(node.op_type == "Relu")
        bounds = [name for name in node.input[1:] if name]
        if len(bounds) < 2 or not all(map(self._graph.is_float, bounds)):  # noqa: PLR2004 - low and high
            return False
        low, high = (self._graph.array(name).item() for name in bounds)
        return bool(low == 0 < high)
