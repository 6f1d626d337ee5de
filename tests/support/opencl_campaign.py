"""Many small networks on the OpenCL devices that this machine has: compiled once, run on each, held to ONNX Runtime.

A process has one OpenCL library, so that each device gets a process of its own, which runs what has been compiled into
some folders (`python -m tests.support.opencl_campaign FOLDER...`). That takes `toolchain python-runtime`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax

from tests.support import nets
from tests.support.paths import ROOT
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, inputs, source

LIMIT = {False: 1e-3, True: 2e-2}
"""Of the largest difference relative to the largest number of an output, by whether layers compute in half."""

_KIND = board.load("opencl-local").resolved()
_LIBRARY, _GIVEN, _WANTED = "net.so", "given.npz", "wanted.npz"


@dataclass(frozen=True)
class Seen:
    """What became of a network on a device.

    Attributes:
        name: Its folder's name.
        difference: The largest one relative to the largest number of its output; infinite where it is not a number.
        fault: Why it did not run; empty if it did.
    """

    name: str
    difference: float = 0.0
    fault: str = ""


def compiled(proto: onnx.ModelProto, folder: Path, *, half: bool) -> tvm.IRModule:
    """Compile a network into a folder, with random inputs and what ONNX Runtime makes of them; return its kernels."""
    folder.mkdir(parents=True)
    model = source.load(nets.save(proto, folder))
    feeds = inputs.random(model.inputs, 0)
    np.savez(folder / _GIVEN, *feeds.values())
    np.savez(folder / _WANTED, *nets.run(proto, feeds))
    backend = Mali(_KIND.with_precision(float16=True) if half else _KIND)
    finished = backend.apply_choices(backend.lower(importer.import_model(model).module), {})
    tvm.compile(finished, target=backend.target).export_library(str(folder / _LIBRARY))
    return finished


def run(
    folders: Iterable[Path], environment: Mapping[str, str], timeout: float, starter: Sequence[str] = ()
) -> list[Seen]:
    """Run compiled networks in one process of their own.

    Args:
        folders: What `compiled` wrote.
        environment: Variables that choose the device, and the cache that has the runtime of this machine's Python.
        timeout: Seconds for all of them.
        starter: Words in front of the program (`opencl_runtimes.command`).

    Raises:
        RuntimeError: The process ended before all were run.
    """
    names = [str(folder) for folder in folders]
    argv = [*starter, sys.executable, "-m", "tests.support.opencl_campaign", *names]
    variables = {**os.environ, "EDGE_OPENCL_CACHE": "", **environment}
    completed = subprocess.run(
        argv, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout
    )
    results = [Seen(**json.loads(line)) for line in completed.stdout.splitlines() if line.startswith("{")]
    if completed.returncode or len(results) != len(names):
        raise RuntimeError(f"{len(results)} of {len(names)} were run, then: {completed.stderr[-2000:]}")
    return results


def _each(folders: Sequence[str]) -> Iterator[Seen]:
    device = tvm.runtime.device("opencl", 0)
    for name in map(Path, folders):
        try:
            yield Seen(name.name, _difference(name, device))
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is told, and the next one is run
            yield Seen(name.name, fault=f"{type(fault).__name__}: {fault}"[:1000])


def _difference(folder: Path, device: tvm.runtime.Device) -> float:
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / _LIBRARY)), device)
    result = machine["main"](*(tvm.runtime.tensor(array, device) for array in _arrays(folder / _GIVEN)))
    outputs = [result] if hasattr(result, "numpy") else list(result)
    worst = [0.0]
    for mine, theirs in zip((output.numpy() for output in outputs), _arrays(folder / _WANTED), strict=True):
        if mine.shape != theirs.shape:
            raise ValueError(f"an output has the shape {mine.shape}, not {theirs.shape}")
        if theirs.size:
            gap = np.abs(mine.astype(np.float64) - theirs)
            worst.append(float(gap.max() / max(1e-6, np.abs(theirs).max())))
    return max(error if np.isfinite(error) else np.inf for error in worst)


def _arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as archive:
        return [archive[name] for name in archive.files]


if __name__ == "__main__":
    for one in _each(sys.argv[1:]):
        sys.stdout.write(json.dumps(asdict(one)) + "\n")
        sys.stdout.flush()
