"""The only import of ONNX Runtime: its official builds send telemetry unless a variable disables it beforehand.

Otherwise it writes an identifier of the machine and a queue of events into the user's cache folder, and sends them to a
host of Microsoft's. The variable counts for the whole process and its children. An import of `onnxruntime` elsewhere
might come before it is set, so a test forbids that.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

__all__ = ["FAULTS", "onnxruntime", "quantization"]

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


def quantization() -> Any:
    """Return its tools for quantization, which take a moment to import."""
    return importlib.import_module("onnxruntime.quantization")
