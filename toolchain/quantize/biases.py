"""Bias correction: rounded weights shift the mean of a layer's sums, which its bias can take back.

For each output channel, the shift is what rounding changes of the weights, times the mean of the inputs. Zeros around
the border of a convolution are left out of that, so it is an estimate; whoever corrects biases measures whether it
helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from toolchain import interrupts
from toolchain.models import protos
from toolchain.progress import Progress, Step
from toolchain.quantize.calibrate import Probe
from toolchain.quantize.graph import Graph
from toolchain.tensors import Tensors

Means = Mapping[str, NDArray[np.float64]]
"""Means of a layer's input by its channels, by the name of the tensor."""

_BIAS = 2  # index among the inputs of a layer
_MOST_SAMPLES = 32
_LARGEST = 2**31 - 1


def measure_means(graph: Graph, layers: Sequence[str], samples: Sequence[Tensors], tell: Progress) -> Means:
    """Run the float network on some of the samples; return the means of the inputs of layers with these names.

    Raises:
        InputError: ONNX Runtime cannot run it.
    """
    inputs = {node.input[0]: 1 if node.op_type == "Conv" else -1 for node in _correctable(graph, layers)}
    if not inputs:
        return {}
    probe = Probe(graph.proto, [*inputs])
    sums: dict[str, NDArray[np.float64]] = {}
    count = min(len(samples), _MOST_SAMPLES)
    for number in range(count):
        interrupts.check()
        tell(Step("measuring the means of activations", number, count, "samples"))
        values = probe.run(samples[number * len(samples) // count])
        for name, axis in inputs.items():
            channels = np.moveaxis(values[name], axis, 0)
            mean = channels.reshape(len(channels), -1).mean(axis=1, dtype=np.float64) / count
            sums[name] = sums[name] + mean if name in sums else mean
    return sums


def correct(proto: onnx.ModelProto, graph: Graph, layers: Sequence[str], means: Means) -> onnx.ModelProto:
    """Return a network in QDQ form with corrected biases; layers without a bias of their own stay as they are.

    Args:
        proto: The network in QDQ form.
        graph: The float network.
        layers: Names of its layers.
        means: As `measure_means` returns them.
    """
    result = protos.clone(proto)
    nodes = {node.name: node for node in result.graph.node}
    makers = {name: node for node in result.graph.node for name in node.output}
    weights = {tensor.name: tensor for tensor in result.graph.initializer}
    for node in _correctable(graph, layers):
        weight, bias = (makers.get(name) for name in nodes[node.name].input[1 : _BIAS + 1])
        if weight is None or bias is None or {weight.op_type, bias.op_type} != {"DequantizeLinear"}:
            continue
        lost = graph.array(node.input[1]) - _dequantized(weight, weights)
        shift = _shift(node, lost, means[node.input[0]])
        steps, scale = (numpy_helper.to_array(weights[name]) for name in bias.input[:2])
        if steps.shape != shift.shape:
            continue
        corrected = np.clip(steps + np.rint(shift / scale), -_LARGEST, _LARGEST).astype(np.int32)
        weights[bias.input[0]].CopyFrom(numpy_helper.from_array(corrected, bias.input[0]))
    return result


def _correctable(graph: Graph, layers: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the layers that have a bias that no other node reads."""
    names = set(layers)
    return [
        node
        for node in graph.nodes
        if node.name in names
        and len(node.input) > _BIAS
        and node.input[_BIAS] in graph.weights
        and graph.uses[node.input[_BIAS]] == 1
        and protos.get_attribute(node, "transA", 0) == 0
        and protos.get_attribute(node, "alpha", 1.0) == 1
    ]


def _dequantized(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> NDArray[np.float64]:
    steps, scale = (numpy_helper.to_array(weights[name]) for name in node.input[:2])
    axis = protos.get_attribute(node, "axis", 1) if scale.ndim else 0
    shape = [scale.size if number == axis else 1 for number in range(steps.ndim)]
    return np.asarray(steps * scale.reshape(shape).astype(np.float64))


def _shift(node: onnx.NodeProto, lost: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much the mean of each output channel is too small, as its weights lost that much."""
    if node.op_type != "Conv":
        rows = lost if protos.get_attribute(node, "transB", 0) else lost.T
        return np.asarray(rows @ mean)
    sums = lost.reshape(*lost.shape[:2], -1).sum(axis=2)
    groups = mean.size // sums.shape[1]
    of_groups = mean.reshape(groups, sums.shape[1]).repeat(len(sums) // groups, axis=0)
    return np.asarray((sums * of_groups).sum(axis=1))
