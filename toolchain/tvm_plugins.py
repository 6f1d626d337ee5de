"""Device runtimes that TVM's wheel lacks, loaded into every Python process that imports TVM.

TVM calls `load` at its import (entry point `tvm.backends` in pyproject.toml), before anything of it can be used: so
nothing here imports it. What `toolchain python-runtime` has built is loaded; TOOLCHAIN_TVM_PLUGIN names another library
instead, such as one of TVM's own that was built from source.
"""

from __future__ import annotations

import ctypes
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
    """Load all plug-ins there are; they register themselves.

    Raises:
        OSError: One cannot be loaded, which TVM makes a warning of.
    """
    named = os.environ.get(VARIABLE)
    for path in [Path(named)] if named else sorted(folder().glob("*.so")):
        ctypes.CDLL(str(path))
