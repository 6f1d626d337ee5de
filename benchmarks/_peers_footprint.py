"""What one engine takes in a process of its own: to import, to load a model, to run it first, and its peak memory.

    python _peers_footprint.py ENGINE MODEL.onnx INPUTS.npz THREADS RESULT.json OUTPUT...

`cpu.py --footprint` starts it. The memory is that of the whole process, with the Python that a user of the engine has
around it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import _peers
import numpy as np

_RUNS = 3


def main() -> None:
    """Load, run three times, and write the figures."""
    name, model, data, threads, result, *outputs = sys.argv[1:]
    with np.load(data) as archive:
        inputs = {key: archive[key] for key in archive.files}
    started = time.perf_counter()
    importlib.import_module(_peers.PACKAGES[name])
    imported = time.perf_counter()
    before = peak_mib()
    engine = _peers.PEERS[name](Path(model), outputs, int(threads))
    loaded = time.perf_counter()
    engine.feed(inputs)
    runs = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        engine.run()
        runs.append((time.perf_counter() - start) * 1000)
    found = {
        "import_ms": (imported - started) * 1000,
        "load_ms": (loaded - imported) * 1000,
        "first_run_ms": runs[0],
        "peak_mib": peak_mib(),
        "before_load_mib": before,
    }
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def peak_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("the kernel does not tell VmHWM")


if __name__ == "__main__":
    main()
