"""One engine in a process of its own, which runs when `cpu.py` asks for it.

    python _engine.py ENGINE MODEL INPUTS.npz OUTPUTS.npz THREADS OUTPUT...

It loads the model, runs it once with each of the inputs, and writes the outputs. From then on it reads a number of
seconds from each line of the standard input, runs as often as that takes, and answers with the milliseconds of each
run as a line of JSON. The first line that it writes has what loading took.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks import _peers

_FEWEST_RUNS = 2


def main() -> None:
    """Load an engine, and answer lines until there are no more."""
    name, model, inputs, outputs, threads, *names = sys.argv[1:]
    # Some engines write on the standard output, which is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    samples = read(Path(inputs))
    began = time.perf_counter()
    if name in _peers.PACKAGES:
        importlib.import_module(_peers.PACKAGES[name])
    imported = time.perf_counter()
    engine = _peers.ENGINES[name](Path(model), names, int(threads))
    loaded = time.perf_counter()
    results = [answer(engine, sample) for sample in reversed(samples)]  # so that the first are the inputs in the end
    save(Path(outputs), results)
    figures = {"import_ms": (imported - began) * 1e3, "load_ms": (loaded - imported) * 1e3, "peak_mib": peak_mib()}
    gc.disable()
    print(json.dumps(figures), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(turn(engine, float(line))), file=answers, flush=True)


def answer(engine: _peers.Engine, inputs: _peers.Arrays) -> _peers.Arrays:
    """Run once with some inputs."""
    engine.feed(inputs)
    engine.run()
    return engine.outputs()


def turn(engine: _peers.Engine, seconds: float) -> list[float]:
    """Run once to wake the threads, then back to back as a stream of frames would come; in milliseconds."""
    engine.run()
    times_ms: list[float] = []
    end = time.perf_counter() + seconds
    while len(times_ms) < _FEWEST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        result = engine.run()
        times_ms.append(round((time.perf_counter() - start) * 1e3, 5))
        del result
    return times_ms


def peak_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def read(path: Path) -> list[dict[str, Any]]:
    """Read sets of arrays, each by the number of its set and its name."""
    with np.load(path) as archive:
        count = 1 + max(int(key.partition("/")[0]) for key in archive.files)
        return [
            {key.partition("/")[2]: archive[key] for key in archive.files if key.startswith(f"{number}/")}
            for number in range(count)
        ]


def save(path: Path, sets: list[Any]) -> None:
    """Write sets of arrays as `read` reads them."""
    np.savez(
        path, **{f"{number}/{name}": value for number, arrays in enumerate(sets) for name, value in arrays.items()}
    )


if __name__ == "__main__":
    main()
