"""Networks on ONNX Runtime with tensors from their middle among the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain.errors import InputError
from toolchain.models.ort import onnxruntime
from toolchain.tensors import Tensors

_FATAL_ONLY = 4


class Probe:
    """One network, ready to run. One thread, so that sums are always added up in one order.

    Args:
        proto: The network.
        tensors: Names of the tensors to return: any inputs, results or tensors between.
        optimized: Whether ONNX Runtime may rewrite it; if not, it computes each node as the standard says.
    """

    def __init__(self, proto: onnx.ModelProto, tensors: Sequence[str], *, optimized: bool = True) -> None:
        self._inputs = {value.name for value in proto.graph.input}
        self._tensors = [name for name in dict.fromkeys(tensors) if name not in self._inputs]
        options = onnxruntime.SessionOptions()
        # With several threads, the order of additions depends on the machine.
        options.intra_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
        outputs = {value.name for value in proto.graph.output}
        probed = onnx.ModelProto()
        probed.CopyFrom(proto)
        probed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._tensors if name not in outputs)
        data, providers = probed.SerializeToString(), ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=providers)
        except Exception as fault:  # its exceptions share no base class of their own
            raise _error(fault) from fault

    def run(self, sample: Tensors) -> dict[str, NDArray[Any]]:
        """Return the wanted tensors for one set of inputs."""
        try:
            values = self._session.run(self._tensors, dict(sample))
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
