"""A pytest plugin that keeps the models that TVM's tests of its ONNX importer make, instead of comparing anything.

`SUITES_FOLDER` names the folder for NAME.onnx, and NAME.safetensors where a test gives inputs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from toolchain import tensors
from toolchain.tensors import DTYPES

_FOLDER = Path(os.environ["SUITES_FOLDER"])
_LONGEST = 120
_OPEN = 3
"""The size of a dimension that a test leaves open."""
_IR_VERSION = 10
"""What the tests were written for; onnx writes a newer one today, which ONNX Runtime does not read."""
_current: list[str] = []
_numbers: dict[str, int] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the stand-ins into each module of tests."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        for name in ("check_correctness", "run_in_tvm"):
            setattr(module, name, _stand_in(module, compares=True, then=None))
        module.from_onnx = _stand_in(module, compares=False, then=module.from_onnx)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test the next models belong to."""
    _current[:] = [re.sub(r"[^\w.-]+", "_", item.name)[:_LONGEST]]


def _stand_in(module: Any, *, compares: bool, then: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return what keeps a model, and does what a test needs of its own function: an import, or nothing."""

    def keep(model: onnx.ModelProto, *args: Any, **options: Any) -> Any:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        opset = options.get("opset", 14 if compares else None)
        if opset is not None:
            copy.opset_import[0].version = opset
        copy.ir_version = min(copy.ir_version, _IR_VERSION)
        if compares:
            inputs = args[0] if args else options.get("inputs")
        else:
            inputs, shapes = None, args[0] if args else options.get("shape_dict")
            for value in copy.graph.input if shapes else ():
                _set_shape(value, shapes.get(value.name))
        _save(module, copy, inputs)
        return then(model, *args, **options) if then else None

    return keep


def _set_shape(value: onnx.ValueInfoProto, shape: Any) -> None:
    for dim, size in zip(value.type.tensor_type.shape.dim, shape or (), strict=False):
        if isinstance(size, int):
            dim.dim_value = size


def _save(module: Any, model: onnx.ModelProto, inputs: Any) -> None:
    test = _current[0]
    number = _numbers[test] = _numbers.get(test, -1) + 1
    path = _FOLDER / f"{test}{f'-{number}' if number else ''}.onnx"
    path.write_bytes(model.SerializeToString())
    values = module.generate_random_inputs(_closed(model, inputs or {}), inputs)
    weights = {tensor.name for tensor in model.graph.initializer}
    arrays = {
        name: np.asarray(value) if name in (inputs or {}) else _small(np.asarray(value))
        for name, value in values.items()
        if name not in weights
    }
    if arrays and all(str(value.dtype) in DTYPES for value in arrays.values()):
        tensors.save(path.with_suffix(".safetensors"), arrays)


def _small(value: Any) -> Any:
    """Return drawn integers as 1 or 2: they may be sizes, indices, repeats or divisors."""
    return np.abs(value) % 2 + 1 if value.dtype.kind == "i" else value


def _closed(model: onnx.ModelProto, inputs: Any) -> onnx.ModelProto:
    """Return a model whose open sizes are set, equal ones for equal names: else TVM draws inputs without elements."""
    closed = onnx.ModelProto()
    closed.CopyFrom(model)
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        array = inputs.get(value.name)
        for dim, size in zip(value.type.tensor_type.shape.dim, () if array is None else np.shape(array), strict=False):
            sizes[dim.dim_param] = size
    for value in closed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = sizes.get(dim.dim_param, _OPEN)
    return closed
