"""The canary and the measurements of one session, in the child process that holds the session.

`trial` calls these through `Session.run`; each gets the session as a `Visit`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tvm
from pydantic import TypeAdapter

from toolchain.errors import InputError
from toolchain.records.results import TensorArg
from toolchain.rpc import server
from toolchain.rpc.child import Visit
from toolchain.rpc.client import error_text
from toolchain.tuning.trials import Options, Rival, Trial, examples_path

_ENTRY = "main"
_FLUSH = "cache_flush_cpu_non_first_arg"
_PASSER = "edge_toolchain.pass_through_caches"
_PASSING = "edge_toolchain.passing_bytes"
_COLD_REPEAT = 15  # samples of a single run each: only the first run after a flush is cold
_FILL = "tvm.contrib.random.random_fill_for_measure"
_USUAL_GFLOPS = 64.0  # of a CPU
_BIG_CORES = 1
_FILE_BYTES = 1 << 16

Samples = tuple[float, ...]
Take = Callable[[], Samples]
_TRIAL = TypeAdapter(Trial)


def take_pulse(visit: Visit, milliseconds: int) -> dict[str, float | None]:
    """Time a fixed amount of work; on a server without that, a trivial call shows that it is alive.

    Returns:
        `canary_s`, the seconds that it took, and `celsius`; None for what the board does not report.
    """
    canary = visit.function("edge_toolchain.canary")
    if canary is None:
        visit.function("runtime.NumThreads")
        return {"canary_s": None, "celsius": None}
    celsius = visit.facts("edge_toolchain.conditions").get("celsius")
    return {"canary_s": float(canary(milliseconds)), "celsius": None if celsius is None else float(celsius)}


def send_file(visit: Visit) -> None:
    """Store a small file on the board; see `trial.send_file`."""
    visit.rpc.upload(bytearray(_FILE_BYTES), "canary")


def measure_trial(
    visit: Visit, trial_fields: dict[str, Any], option_fields: dict[str, Any], spread: float, budget_s: float
) -> dict[str, Any]:
    """Measure a trial; see `trial.measure_trial`."""
    trial, options = _TRIAL.validate_python(trial_fields), Options(**option_fields)
    threads = _use_threads(visit, options.threads)
    take = _sampler(visit, trial, options, Rival(trial.library, trial.args))
    with _waiting(visit, threads) as waited:
        samples = _sample(take, spread, budget_s)
    return {"samples_s": [samples], **waited}


def measure_turn(
    visit: Visit, trial_fields: dict[str, Any], option_fields: dict[str, Any], order: list[int]
) -> dict[str, Any]:
    """Measure the kernels of a final in turns; see `trial.measure_turn`."""
    trial, options = _TRIAL.validate_python(trial_fields), Options(**option_fields)
    threads = _use_threads(visit, options.threads)
    kernels = [Rival(trial.library, trial.args), *trial.rivals]
    takes = {index: _sampler(visit, trial, options, kernels[index], f"trial{index}") for index in order}
    samples: dict[int, list[float]] = {index: [] for index in order}
    with _waiting(visit, threads) as waited:
        for index in (*order, *reversed(order)):  # so that a drift within the turn affects all kernels alike
            samples[index] += takes[index]()
    return {"samples_s": [samples.get(index, []) for index in range(len(kernels))], **waited}


def measure_peak(visit: Visit) -> float | None:
    """Return the peak of a board's CPUs in GFLOPS; None if it is unknown.

    On a busy board the measured peak is too low, so each CPU counts at least as much as a usual one.
    """
    function = visit.function("edge_toolchain.peak_gflops")
    if function is None:
        return None
    cpus = visit.facts("edge_toolchain.hardware").get("cpus", 1)
    return max(float(function()), _USUAL_GFLOPS * float(cpus))


def _sampler(visit: Visit, trial: Trial, options: Options, built: Rival, name: str = "trial") -> Take:
    """Load a candidate on the board as the file `name`; return a function that takes samples of it."""
    name += built.library.suffix
    visit.rpc.upload(bytearray(built.library.read_bytes()), name)
    # Kept until the session ends: freeing a remote object is a call of its own, which may hang.
    module = visit.keep(visit.rpc.load_module(name))
    # TVM names the CPU's target after its compiler.
    device = visit.rpc.device("cpu" if options.device == "llvm" else options.device, 0)
    arguments = [_argument(visit, arg, device) for arg in built.args]
    with contextlib.suppress(FileNotFoundError), np.load(examples_path(built.library)) as examples:
        for number in examples:
            arguments[int(number)].copyfrom(examples[number])
    evaluate = visit.keep(module.time_evaluator(_ENTRY, device, **_sampling(visit, trial, options)))
    return lambda: tuple(float(value) for value in evaluate(*arguments).results)


@contextlib.contextmanager
def _waiting(visit: Visit, threads: int) -> Iterator[dict[str, float | None]]:
    """Set `waited` at the end of a block: the share of it that the threads waited for CPUs; None if unknown."""
    result: dict[str, float | None] = {"waited": None}
    before, start = visit.facts("edge_toolchain.conditions").get("waited_s"), time.monotonic()
    yield result
    spent_s, after = time.monotonic() - start, visit.facts("edge_toolchain.conditions").get("waited_s")
    if before is not None and after is not None and threads:
        result["waited"] = (float(after) - float(before)) / (spent_s * threads)


def _argument(visit: Visit, arg: TensorArg, device: Any) -> Any:
    """Return a tensor on a device of the board, filled with random numbers if the server can do that."""
    argument = visit.keep(tvm.runtime.empty(arg.shape, arg.dtype, device))
    fill = visit.function(_FILL)
    if fill:
        fill(argument)
    return argument


def _sampling(visit: Visit, trial: Trial, options: Options) -> dict[str, Any]:
    """Return the options of a time evaluator."""
    usual = {"number": options.number, "repeat": options.repeat, "min_repeat_ms": options.min_repeat_ms}
    if options.cache_flush or not trial.passing_bytes:
        return {**usual, "f_preproc": _FLUSH if options.cache_flush else ""}
    # Weights are cold only in the first run after the flush, so each sample is a single run.
    cold = {"number": 1, "repeat": _COLD_REPEAT, "min_repeat_ms": 0}
    passing = visit.function(_PASSING)
    if passing is None:  # TVM's own server
        return {**cold, "f_preproc": _FLUSH}
    passing(trial.passing_bytes)
    return {**cold, "f_preproc": _PASSER}


def _sample(take: Take, spread: float, budget_s: float) -> Samples:
    """Take samples; if they vary much, take them again and keep those with the lower median."""
    start = time.monotonic()
    first = take()
    spent_s = time.monotonic() - start
    if max(first) <= spread * min(first) or 2 * spent_s > budget_s:
        return first
    return min(first, take(), key=statistics.median)


def _use_threads(visit: Visit, count: int) -> int:
    """Set the number of threads, 0 for one per CPU of the board; return the number, 0 if it is unknown."""
    set_threads = visit.function("edge_toolchain.threads")
    if set_threads is not None:
        try:
            return int(set_threads(count))
        except tvm.error.RPCError as fault:
            if server.PROCESS_ENDED in str(fault):
                raise
            raise InputError(
                f"the board cannot run kernels on {count} threads",
                details=error_text(fault),
                hint="use fewer threads, or 0 for all CPUs of the board",
            ) from fault
    # TVM's own server.
    threads = count or visit.facts("edge_toolchain.hardware").get("cpus", 0)
    configure = visit.function("runtime.config_threadpool") if threads else None
    if configure is not None:
        configure(_BIG_CORES, int(threads))
    return int(threads)
