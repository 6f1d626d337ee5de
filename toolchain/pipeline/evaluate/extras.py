"""The packages of the extra `evaluate`, which two metrics need."""

from __future__ import annotations

import importlib
from typing import Any

from toolchain.errors import InputError

_REQUIREMENTS = {"pycocotools": "pycocotools>=2.0.10", "jiwer": "jiwer>=4"}  # as in pyproject.toml


def require(package: str, metric: str) -> None:
    """Check that a package is installed.

    Raises:
        InputError: It is not.
    """
    try:
        load(package)
    except ImportError as fault:
        raise InputError(
            f"the metric {metric} needs {package}, which is not installed",
            details=str(fault),
            hint=f"pip install '{_REQUIREMENTS[package]}'",
        ) from fault


def load(module: str) -> Any:
    """Import a module of these packages."""
    return importlib.import_module(module)
