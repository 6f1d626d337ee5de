"""The OpenCL runtime for this machine's Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolchain.backends._plugin import build_plugin


def build(tell: Callable[[str], None]) -> Path:
    """Build the plug-in and put it where every later `import tvm` loads it from.

    Raises:
        BuildError: There is no compiler, or it refuses the sources.
    """
    return build_plugin("opencl", tell)
