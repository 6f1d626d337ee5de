"""The only import of ONNX Runtime: its official builds send telemetry unless a variable disables it beforehand.

Otherwise it writes an identifier of the machine and a queue of events into the user's cache folder, and sends them to a
host of Microsoft's. The variable counts for the whole process and its children. An import of `onnxruntime` elsewhere
might come before it is set, so a test forbids that.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.models import protos
from toolchain.tensors import DTYPES

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

__all__ = ["FAULTS", "Session", "onnxruntime", "quantization"]

FAULTS: tuple[type[Exception], ...] = (
    _state.Fail,
    _state.InvalidArgument,
    _state.InvalidGraph,
    _state.InvalidProtobuf,
    _state.NoSuchFile,
    _state.NotImplemented,
    _state.RuntimeException,
)
"""Exceptions for a model that ONNX Runtime cannot load or run; they share no base class of their own."""


class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A model that is open on this machine's CPU, its large weights shared with ONNX Runtime instead of copied.

    Args:
        proto: The model.
        options: For this session alone.
        disabled_optimizers: Names of optimizations that are left out.
    """

    def __init__(self, proto: onnx.ModelProto, options: Any, disabled_optimizers: list[str] | None = None) -> None:
        light = protos.without_weights(proto)
        values = {}
        for tensor, described in zip(proto.graph.initializer, light.graph.initializer, strict=True):
            if not protos.is_large(tensor):
                continue
            array = numpy_helper.to_array(tensor)
            # ONNX Runtime takes no other types from numpy. Where it has no kernel in half precision, it converts such
            # weights first, and then misses their names.
            if str(array.dtype) not in DTYPES or array.dtype == np.float16:
                described.CopyFrom(tensor)
                continue
            # What is said to be in a file, ONNX Runtime takes from the values of the options if they have it.
            described.data_location = onnx.TensorProto.EXTERNAL
            described.external_data.add(key="location", value="shared")
            values[tensor.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        self._shared = values  # ONNX Runtime does not keep them itself
        options.add_external_initializers([*values], [*values.values()])
        super().__init__(
            light.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=disabled_optimizers
        )


def quantization() -> Any:
    """Return its tools for quantization, which take a moment to import."""
    return importlib.import_module("onnxruntime.quantization")
