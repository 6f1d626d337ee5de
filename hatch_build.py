"""Puts the device programs into the wheel where `make wheel` asks for them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# `all`, or some triples, separated by commas.
VARIABLE = "TOOLCHAIN_WHEEL_PROGRAMS"


class DevicePrograms(BuildHookInterface):
    """Builds the programs, or takes them from the toolchain's cache."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        triples = os.environ.get(VARIABLE, "")
        if not triples or version == "editable":
            return
        sys.path.insert(0, self.root)
        from toolchain import resources  # noqa: PLC0415 - only a wheel with programs needs the toolchain's dependencies
        from toolchain.architecture import PROGRAM_TRIPLES  # noqa: PLC0415
        from toolchain.native import packaging  # noqa: PLC0415

        self._work = tempfile.TemporaryDirectory(prefix="edge-toolchain-")
        folder = Path(self._work.name)
        packaging.write(folder, PROGRAM_TRIPLES if triples == "all" else triples.split(","), self._tell)
        build_data["force_include"][str(folder)] = f"toolchain/{resources.DATA}/{resources.PROGRAMS}"

    def _tell(self, line: str) -> None:
        if line.startswith("building"):
            self.app.display_info(line)
