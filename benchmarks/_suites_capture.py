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
_current: list[str] = []
_numbers: dict[str, int] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the stand-ins into each module of tests."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        for name in ("check_correctness", "run_in_tvm"):
            setattr(module, name, _stand_in(module, has_opset=True, then=None))
        module.from_onnx = _stand_in(module, has_opset=False, then=module.from_onnx)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test the next models belong to."""
    _current[:] = [re.sub(r"[^\w.-]+", "_", item.name)[:_LONGEST]]


def _stand_in(module: Any, *, has_opset: bool, then: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return what keeps a model, and does what a test needs of its own function: an import, or nothing."""

    def keep(model: onnx.ModelProto, *args: Any, **options: Any) -> Any:
        given = args[0] if args and has_opset else options.get("inputs")
        if has_opset:
            model.ir_version = options.get("ir_version", 8) or model.ir_version
            model.opset_import[0].version = options.get("opset", 14) or model.opset_import[0].version
        _save(module, model, given)
        return then(model, *args, **options) if then else None

    return keep


def _save(module: Any, model: onnx.ModelProto, given: Any) -> None:
    test = _current[0]
    number = _numbers[test] = _numbers.get(test, -1) + 1
    path = _FOLDER / f"{test}{f'-{number}' if number else ''}.onnx"
    path.write_bytes(model.SerializeToString())
    values = module.generate_random_inputs(model, given)
    weights = {tensor.name for tensor in model.graph.initializer}
    arrays = {name: np.asarray(value) for name, value in values.items() if name not in weights}
    if arrays and all(str(value.dtype) in DTYPES for value in arrays.values()):
        tensors.save(path.with_suffix(".safetensors"), arrays)
