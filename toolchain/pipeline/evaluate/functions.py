"""Functions of the user's own project: metrics and preprocessing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import files
from toolchain.errors import InputError, did_you_mean, reason


@dataclass(frozen=True)
class UserFunction:
    """A function of the user's project; `digest` is that of its module's file."""

    name: str
    call: Callable[..., Any]
    digest: str

    def __call__(self, sample: str, *values: Any) -> Any:
        """Call it for a sample.

        Raises:
            InputError: The function raised.
        """
        try:
            return self.call(*values)
        except Exception as fault:  # it is the user's, and raises exceptions of any class
            raise InputError(
                f"{self.name} failed for {sample}",
                details=f"{type(fault).__name__}: {reason(fault)}",
                hint="correct the function; finished samples are not computed again",
            ) from fault


def load(name: str) -> UserFunction:
    """Import a function by `module:function`; modules are searched in the working folder first.

    Raises:
        InputError: There is no such module or function, or the import fails.
    """
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise InputError(f"{name!r} is not of the form module:function", hint="for example: mymetrics:score")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as fault:  # the user's module raises exceptions of any class
        raise InputError(
            f"cannot import {module_name}",
            details=f"{type(fault).__name__}: {reason(fault)}",
            hint=f"{module_name.replace('.', '/')}.py is searched in the working folder, then in Python's packages",
        ) from fault
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = did_you_mean(function_name, names) or f"define it in {module_name}"
        raise InputError(f"{module_name} has no function {function_name}", hint=hint)
    path = Path(getattr(module, "__file__", None) or "")
    return UserFunction(name, function, files.sha256_file(path) if path.is_file() else "")
