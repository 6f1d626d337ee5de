"""Additions to TVM's wheel in every Python process that imports TVM: device runtimes, and Ctrl-C.

TVM calls `load` during its import (entry point `tvm.backends` in pyproject.toml), so this module must not import TVM.
It loads what `toolchain python-runtime` has built, or the library that TOOLCHAIN_TVM_PLUGIN names, such as one of TVM's
own that was built from source.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
from pathlib import Path

from toolchain import files

VARIABLE = "TOOLCHAIN_TVM_PLUGIN"


def folder() -> Path:
    """Return the folder of plug-ins for the installed version of TVM."""
    versions = "-".join(importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi"))
    return files.cache_root() / "plugins" / versions


def load() -> None:
    """Let interrupts pass, and load all plug-ins, which register themselves. TVM turns an OSError into a warning."""
    # Ctrl-C in a callback goes through C++ by the name of its class. An unknown class arrives as a RuntimeError without
    # a message, as if the compiler had failed.
    importlib.import_module("tvm_ffi").register_error("KeyboardInterrupt", KeyboardInterrupt)
    library = os.environ.get(VARIABLE)
    for path in [Path(library)] if library else sorted(folder().glob("*.so")):
        ctypes.CDLL(str(path))
