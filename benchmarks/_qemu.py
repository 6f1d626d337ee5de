"""The runner that goes to a board, run under QEMU's user mode with a plugin that counts what it executes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import tensors
from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.device import verification
from toolchain.native import programs

_SOURCE = Path(__file__).with_name("qemu_count.c")
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Ran:
    """What a process of the runner left.

    Attributes:
        counted: What the plugin wrote.
        difference: Largest difference from ONNX Runtime's outputs, over the largest of these.
        report: The runner's own report.
    """

    counted: str
    difference: float
    report: dict[str, Any]


@dataclass(frozen=True)
class Emulator:
    """QEMU's user mode, and the plugin.

    Attributes:
        program: The emulator.
        plugin: The plugin.
        cpu: The core, as the emulator calls it; empty: its default.
        root: Where programs find their libraries; None: this machine's for other processors.
        environment: Its variables; None: those of this process.
    """

    program: Path
    plugin: Path
    cpu: str = ""
    root: Path | None = None
    environment: Mapping[str, str] | None = None

    def run(self, bundle: Bundle, kind: Board, options: Sequence[str], timed: int) -> Ran:
        """Run a network once and `timed` times more.

        Args:
            bundle: The network.
            kind: The board that it was built for.
            options: The plugin's arguments.
            timed: How many runs follow the first.
        """
        samples = verification.samples_of(bundle)
        runner = programs.build(programs.RUNNER, kind.triple, kind.machine).path
        with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
            work = Path(scratch)
            tensors.save(work / "inputs", samples.inputs)
            argv: list[Any] = [self.program, "-L", self.root or f"/usr/{kind.triple}", *self._settings]
            argv += ["-plugin", ",".join([str(self.plugin), *options])]
            argv += [runner, "--release", bundle.folder, "--inputs", work / "inputs", "--outputs", work / "outputs"]
            argv += ["--report", work / "report", "--threads", "1", "--warmup-runs", "0", "--budget-ms", "0"]
            argv += ["--max-runs", str(timed), "--min-runs", str(max(timed, 1))]
            environment = {**(self.environment or os.environ), "TVM_NUM_THREADS": "1"}
            completed = subprocess.run(
                argv, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment
            )
            if completed.returncode:
                raise SystemExit(
                    f"{kind.name}: the runner ended with code {completed.returncode}\n{completed.stderr[-2000:]}"
                )
            outputs = tensors.compare(tensors.load(work / "outputs"), samples.expected)
            return Ran(completed.stderr, outputs.max_rel, json.loads((work / "report").read_text()))

    @property
    def _settings(self) -> list[str]:
        # The runner is to find its libraries by itself, whatever the emulator's are.
        return [*(["-cpu", self.cpu] if self.cpu else []), *(["-E", "LD_LIBRARY_PATH="] if self.environment else [])]


def find(name: str, folder: Path | None) -> Path:
    """Return an emulator; Debian's package qemu-user has it, qemu-user-static has no plugins."""
    program = folder / name if folder else shutil.which(name)
    if program is None or not Path(program).is_file():
        raise SystemExit(
            f"{name} is missing: apt-get install --no-install-recommends qemu-user, or name its folder: --qemu"
        )
    return Path(program)


def plugin(folder: Path, source: Path = _SOURCE) -> Path:
    """Compile a plugin into a folder."""
    path = folder / source.with_suffix(".so").name
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, source], check=True)
    return path
