"""Grids that fit the activations of samples, and biases that make up for the rounding of the weights.

The activations come from ONNX Runtime, with tensors from the middle of the network among the results.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain.errors import InputError
from toolchain.models.ort import Session, onnxruntime
from toolchain.quantize.graph import Graph
from toolchain.quantize.plan import Layer, Plan
from toolchain.quantize.ranges import Grid
from toolchain.quantize.scales import Exponents, Histogram, multiples, rounded
from toolchain.tensors import Tensors

_FATAL_ONLY = 4


def session_options(*, optimized: bool) -> Any:
    """Return options of ONNX Runtime for one thread: with several, the order of additions depends on the machine."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    return options


class Probe:
    """One network, ready to run on one thread.

    Args:
        proto: The network.
        tensors: Names of the tensors to return: any inputs, results or tensors between.
        optimized: Whether ONNX Runtime may rewrite it; if not, it computes each node as the standard says.
    """

    def __init__(self, proto: onnx.ModelProto, tensors: Sequence[str], *, optimized: bool = True) -> None:
        self._inputs = {value.name for value in proto.graph.input}
        self._tensors = [name for name in dict.fromkeys(tensors) if name not in self._inputs]
        outputs = {value.name for value in proto.graph.output}
        probed = onnx.ModelProto()
        probed.CopyFrom(proto)
        probed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._tensors if name not in outputs)
        try:
            self._session = Session(probed, session_options(optimized=optimized))
        except Exception as fault:  # its exceptions share no base class of their own
            raise _error(fault) from fault

    def run(self, sample: Tensors) -> dict[str, NDArray[Any]]:
        """Return the wanted tensors for one set of inputs."""
        try:
            values = self._session.run(self._tensors, dict(sample)) if self._tensors else []
        except Exception as fault:  # as above
            raise _error(fault) from fault
        tensors = {name: np.asarray(value) for name, value in zip(self._tensors, values, strict=True)}
        return tensors | {name: value for name, value in sample.items() if name in self._inputs}


def _error(fault: Exception) -> InputError:
    return InputError(
        "ONNX Runtime cannot run the model, so its activations cannot be measured",
        details=str(fault).strip()[-2000:],
        hint="check the model with `toolchain inspect model`",
    )


@dataclass(frozen=True)
class Calibration:
    """Grids of the activations by tensor, and the means of the layers' inputs by tensor and channel."""

    grids: dict[str, Grid]
    means: dict[str, NDArray[np.float64]]


def calibrate(graph: Graph, plan: Plan, samples: Sequence[Tensors], method: str) -> Calibration:
    """Run the float network once on each sample; nothing of a sample is kept but counts.

    Raises:
        InputError: An activation is infinite or no number.
    """
    probe = Probe(graph.proto, plan.tensors)
    histograms = {name: Histogram() for name in plan.tensors}
    sources = {layer.input for layer in plan.layers}
    sums: dict[str, Any] = collections.defaultdict(float)
    for number, sample in enumerate(samples):
        values = probe.run(sample)
        for name, histogram in histograms.items():
            if not histogram.add(values[name]):
                raise InputError(
                    f"tensor {name!r} of the float model is infinite or not a number in sample {number}",
                    details="samples are numbered from 0, in the order of their file names",
                    hint="remove that sample, or check why the model overflows on it",
                )
        for name in sources:
            axes = tuple(axis for axis in range(values[name].ndim) if axis != 1)
            sums[name] += np.asarray(values[name].mean(axis=axes, dtype=np.float64))
    # A clip has cut off the outliers already, and its bound must be reached.
    clipped = {layer.output for layer in plan.layers if layer.clipped}
    grids = {name: histogram.grid("max" if name in clipped else method) for name, histogram in histograms.items()}
    return Calibration(grids, {name: np.asarray(total / len(samples)) for name, total in sums.items()})


def own_bias(graph: Graph, layer: Layer) -> NDArray[np.float64]:
    """Return a layer's bias, one number for each output channel."""
    if not layer.bias:
        return np.zeros(len(graph.array(layer.weight)))
    return graph.array(layer.bias).astype(np.float64)


def corrected_bias(graph: Graph, layer: Layer, exponents: Exponents, mean: NDArray[Any]) -> NDArray[np.float64]:
    """Return a layer's bias plus the average loss of its sums by the rounding of its weights.

    `mean` is that of the layer's input by channel.
    """
    weight = graph.array(layer.weight).astype(np.float64)
    exponent = exponents.weights[layer.weight]
    lost = weight - multiples(rounded(weight, exponent), exponent)
    sums = lost.reshape(*lost.shape[:2], -1).sum(axis=2)
    # The weights of a convolution in groups have the channels of one group alone.
    groups = mean.size // sums.shape[1]
    of_groups = mean.reshape(groups, sums.shape[1]).repeat(len(sums) // groups, axis=0)
    return np.asarray(own_bias(graph, layer) + (sums * of_groups).sum(axis=1))
