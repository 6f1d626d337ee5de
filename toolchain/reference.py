"""The second opinion: what ONNX Runtime computes for the same model and the same inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from toolchain.errors import InputError
from toolchain.model import SourceModel
from toolchain.tensors import Tensors

NAME = f"onnxruntime {onnxruntime.__version__}"

_FATAL_ONLY = 4

# A sum that lies between two steps may be rounded to either. One step of 8 bits in an early layer changed the results
# of networks by up to 1.5e-2, a few of them by 2.4e-2.
_QUANTIZED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"})
_QUANTIZED_TOLERANCE = 5e-2


# Half precision has 11 bits: 5e-4 at each rounding, of which a deep network has many.
_FLOAT16_TOLERANCE = 2e-2


def tolerance(source: SourceModel, *, float16: bool = False) -> float | None:
    """Return the limit for a model's relative difference where it does not follow from its output's dtype.

    Args:
        source: The model.
        float16: Whether the device computes in half precision.
    """
    if any(node.op_type in _QUANTIZED for node in source.proto.graph.node):
        return _QUANTIZED_TOLERANCE
    return _FLOAT16_TOLERANCE if float16 else None


def name(*, to_the_letter: bool = False) -> str:
    """Return what a report calls the reference; the argument is that of `run`."""
    return f"{NAME} without optimisations" if to_the_letter else NAME


def run(source: SourceModel, inputs: Tensors, *, to_the_letter: bool = False) -> dict[str, NDArray[Any]]:
    """Run a model once with ONNX Runtime on this machine's CPU.

    One thread: a reduction split over threads may add up in another order, and the reference is to be reproducible.

    Args:
        source: The model.
        inputs: What it is run with.
        to_the_letter: Whether each operator is computed as the file has it. Otherwise those around a quantized one are
            merged with it, which rounds elsewhere.

    Returns:
        The outputs by name.

    Raises:
        InputError: ONNX Runtime cannot run the model, so there is nothing to compare with.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    if to_the_letter:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            source.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run(list(source.output_names), dict(inputs))
    except Exception as fault:  # its exceptions share no base class of their own
        raise InputError(
            f"ONNX Runtime cannot run {source.name}, so its outputs have no reference",
            details=str(fault).strip()[-2000:],
            hint="check the model with `toolchain model inspect`",
        ) from fault
    return {name: np.asarray(value) for name, value in zip(source.output_names, values, strict=True)}
