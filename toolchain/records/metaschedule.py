"""MetaSchedule without the 13 seconds that its tensor intrinsics take to import."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm.s_tir

_PACKAGE = "tvm.s_tir.tensor_intrin"
_MODEL = "model"


def meta_schedule() -> Any:
    """Return `tvm.s_tir.meta_schedule`; import it by this function alone.

    Its first use imports all tensor intrinsics, unless `light_intrinsics` has put an empty package in their place. The
    rules of some targets look intrinsics up; those of `llvm` do not.
    """
    light_intrinsics()
    return importlib.import_module("tvm.s_tir.meta_schedule")


def light_intrinsics() -> None:
    """Let `import tvm.s_tir.tensor_intrin` import an empty package; its modules remain importable."""
    if _PACKAGE in sys.modules:
        return
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[_PACKAGE] = package
    tvm.s_tir.tensor_intrin = package


def target_table(target: tvm.target.Target) -> dict[str, Any]:
    """Return a target as plain values: its kind and its attributes, in the order of their names.

    Attributes that TVM derives, such as `feature.has_asimd`, are left out, and so is the model's name, which does not
    affect candidates.
    """
    attributes = {
        str(key): _plain(value) for key, value in target.attrs.items() if "." not in str(key) and str(key) != _MODEL
    }
    return {"kind": str(target.kind.name), **dict(sorted(attributes.items()))}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Sequence) else value
