"""What TVM's wheel lacks, in every Python process that imports TVM: device runtimes, and Ctrl-C.

TVM calls `load` at its import (entry point `tvm.backends` in pyproject.toml), before anything of it can be used: so
nothing here imports it. What `toolchain python-runtime` has built is loaded; TOOLCHAIN_TVM_PLUGIN names another library
instead, such as one of TVM's own that was built from source.
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
    """Return where plug-ins for the installed TVM are, on this machine."""
    versions = "-".join(importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi"))
    return files.cache_root() / "plugins" / versions


def load() -> None:
    """Let interrupts pass, and load all plug-ins there are; they register themselves.

    Raises:
        OSError: One cannot be loaded, which TVM makes a warning of.
    """
    # Ctrl-C in a callback goes through C++ by the name of its class. Of one that is not known there, a RuntimeError
    # without a word arrives, as if the compiler had failed.
    importlib.import_module("tvm_ffi").register_error("KeyboardInterrupt", KeyboardInterrupt)
    named = os.environ.get(VARIABLE)
    for path in [Path(named)] if named else sorted(folder().glob("*.so")):
        ctypes.CDLL(str(path))
