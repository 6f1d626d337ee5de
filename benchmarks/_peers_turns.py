"""Bursts of runs: warm, alone on the CPUs, and repeated where other work disturbed them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from _peers import Engine

Turns = list[list[float]]
"""Milliseconds of every timed run of one engine, one list for each round."""

_BURST_S = 0.15
_SLOW_S = 1.0
_WARM_S = 0.01
_WARM_RUNS = 2
_FEW_RUNS, _MOST_RUNS = 3, 2000
_TRIES = 3
_OTHERS = 0.05  # of one CPU
_TICK_S = 0.02  # the kernel counts in ticks of 10 ms
_NAP_S = 0.005
_MOST_NAPS = 100


def quiet_burst(engine: Engine) -> tuple[list[float], bool]:
    """Repeat a short burst that other work disturbed: it slows engines whose threads wait spinning down the most."""
    for _ in range(_TRIES):
        settle()
        began, others = time.perf_counter(), others_s()
        samples = burst(engine)
        took = time.perf_counter() - began
        quiet = others_s() - others < _OTHERS * took + _TICK_S
        if quiet or took > _SLOW_S:
            break
    return samples, quiet


def others_s() -> float:
    """Return the CPU time that this machine has spent on anything but this process, a hypervisor's theft included."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").split(maxsplit=9)
    user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, fields[1:9])
    used = (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
    return used - time.process_time()


def burst(engine: Engine) -> list[float]:
    """Warm an engine up, then time runs back to back, as a stream of frames would come; in milliseconds."""
    warm = [timed(engine)]
    while warm[0] < _SLOW_S and (len(warm) < _WARM_RUNS or sum(warm) < _WARM_S):
        warm.append(timed(engine))
    runs = 1 if warm[-1] > _SLOW_S else min(max(_FEW_RUNS, int(_BURST_S / warm[-1])), _MOST_RUNS)
    return [timed(engine) * 1000 for _ in range(runs)]


def timed(engine: Engine) -> float:
    """Time one run in seconds; what it returns is freed after the clock has been read."""
    start = time.perf_counter()
    result = engine.run()
    seconds = time.perf_counter() - start
    del result
    return seconds


def settle() -> None:
    """Wait until the threads of the engine before have gone to sleep.

    Most keep their workers spinning after a run: ONNX Runtime for 40 ms, TVM for 240 ms. With a worker for every CPU
    that costs the next engine 4 to 10 % (SqueezeNet, 2 threads: ONNX Runtime 1.78 instead of 1.71 ms, OpenVINO 1.86
    instead of 1.74, MNN 3.24 instead of 2.93). Forbidding the spinning would be unfair: ONNX Runtime takes 2.7 ms
    then. With this wait every engine has its defaults, and is within 2 % of what it takes in a process of its own.
    """
    for _ in range(_MOST_NAPS):
        before = time.process_time()
        time.sleep(_NAP_S)
        if time.process_time() - before < _NAP_S / 10:
            return


def summary(turns: Turns) -> dict[str, Any]:
    """Summarize what one engine took: the median over rounds of each round's median."""
    medians = [float(np.median(times)) for times in turns]
    return {
        "median_ms": float(np.median(medians)),
        "min_ms": min(min(times) for times in turns),
        "runs": sum(len(times) for times in turns),
        "rounds_ms": [round(median, 5) for median in medians],
    }
