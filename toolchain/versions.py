"""Versions of the libraries that are compiled against: libraries and programs work together only if these agree."""

from __future__ import annotations

import importlib.metadata
import re

_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_NUMBERS_OF_AN_ABI = 3


def tvm() -> dict[str, str]:
    """Return the versions of TVM and of its binary interface."""
    return {name.removeprefix("apache-").replace("-", "_"): importlib.metadata.version(name) for name in _PACKAGES}


def preparation() -> dict[str, str]:
    """Return the versions of the packages that prepare a model before TVM reads it."""
    return {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime")}


def abi(version: str) -> str:
    """Return the first three numbers of a version of tvm-ffi, which its ABI depends on."""
    return ".".join(re.findall(r"\d+", version)[:_NUMBERS_OF_AN_ABI])
