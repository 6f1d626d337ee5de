"""What is done on a board in one session, in the process that holds it: the canary, and a trial.

`trial` lets these run there; each gets the session as a `Visit`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import tvm
from pydantic import TypeAdapter

from toolchain.errors import InputError
from toolchain.records.results import TensorArg
from toolchain.rpc import server
from toolchain.rpc.child import Visit
from toolchain.rpc.client import error_text
from toolchain.tuning.trials import Options, Rival, Trial

_ENTRY = "main"
_FLUSH = "cache_flush_cpu_non_first_arg"
_PASSER = "edge_toolchain.pass_through_caches"
_PASSING = "edge_toolchain.passing_bytes"
_COLD_REPEAT = 15  # samples of a single run each, of which the median counts
_FILL = "tvm.contrib.random.random_fill_for_measure"
_USUAL_GFLOPS = 64.0  # of a CPU
_BIG_CORES = 1
_LITTLE = 1 << 16

Samples = tuple[float, ...]
Take = Callable[[], Samples]
_TRIAL = TypeAdapter(Trial)


def pulse(visit: Visit, milliseconds: int) -> dict[str, float | None]:
    """Let a board do a fixed amount of work; where it knows none, a trivial call shows that it is alive.

    Returns:
        `canary_s`, the seconds that it took, and `celsius`; None for what the board does not say.
    """
    canary = visit.function("edge_toolchain.canary")
    if canary is None:
        visit.function("runtime.NumThreads")
        return {"canary_s": None, "celsius": None}
    celsius = visit.facts("edge_toolchain.conditions").get("celsius")
    return {"canary_s": float(canary(milliseconds)), "celsius": None if celsius is None else float(celsius)}


def send_something(visit: Visit) -> None:
    """Let a board store a little: one whose disk is full fails every trial, and none is to blame."""
    visit.rpc.upload(bytearray(_LITTLE), "canary")


def measured(
    visit: Visit, trial_given: dict[str, Any], options_given: dict[str, Any], spread: float, budget_s: float
) -> dict[str, Any]:
    """Measure a trial; see `trial.measured`."""
    trial, options = _TRIAL.validate_python(trial_given), Options(**options_given)
    threads = _use_threads(visit, options.threads)
    take = _sampler(visit, trial, options, Rival(trial.library, trial.args))
    with _watched(visit, threads) as said:
        samples = _sampled(take, spread, budget_s)
    return {"samples_s": [samples], **said}


def turn(visit: Visit, trial_given: dict[str, Any], options_given: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """Measure the candidates of a final in turns; see `trial.turn`."""
    trial, options = _TRIAL.validate_python(trial_given), Options(**options_given)
    threads = _use_threads(visit, options.threads)
    given = [Rival(trial.library, trial.args), *trial.rivals]
    takes = {place: _sampler(visit, trial, options, given[place], f"trial{place}") for place in order}
    found: dict[int, list[float]] = {place: [] for place in order}
    with _watched(visit, threads) as said:
        for place in (*order, *reversed(order)):  # what drifts within a turn drifts for all
            found[place] += takes[place]()
    return {"samples_s": [found.get(place, []) for place in range(len(given))], **said}


def peak(visit: Visit) -> float | None:
    """Return what a board's CPUs compute at most, in GFLOPS; None where it cannot tell.

    A board that others use shows little of that: no CPU is taken for slower than most are.
    """
    function = visit.function("edge_toolchain.peak_gflops")
    if function is None:
        return None
    cpus = visit.facts("edge_toolchain.hardware").get("cpus", 1)
    return max(float(function()), _USUAL_GFLOPS * float(cpus))


def _sampler(visit: Visit, trial: Trial, options: Options, built: Rival, name: str = "trial") -> Take:
    """Load a candidate on a board, under a name of the session's; return what takes samples of it."""
    name += built.library.suffix
    visit.rpc.upload(bytearray(built.library.read_bytes()), name)
    module = visit.keep(visit.rpc.load_module(name))
    # What TVM's target calls by its compiler is the device `cpu`.
    device = visit.rpc.device("cpu" if options.device == "llvm" else options.device, 0)
    arguments = [_argument(visit, arg, device) for arg in built.args]
    evaluate = visit.keep(module.time_evaluator(_ENTRY, device, **_sampling(visit, trial, options)))
    return lambda: tuple(float(value) for value in evaluate(*arguments).results)


@contextlib.contextmanager
def _watched(visit: Visit, threads: int) -> Iterator[dict[str, float | None]]:
    """Say at the end of a block for which share of it the kernels' threads had to wait for a CPU; None if unknown."""
    said: dict[str, float | None] = {"waited": None}
    before, start = _waited_s(visit), time.monotonic()
    yield said
    spent, after = time.monotonic() - start, _waited_s(visit)
    if before is not None and after is not None and threads:
        said["waited"] = (after - before) / (spent * threads)


def _waited_s(visit: Visit) -> float | None:
    found = visit.facts("edge_toolchain.conditions").get("waited_s")
    return None if found is None else float(found)


def _argument(visit: Visit, arg: TensorArg, device: Any) -> Any:
    """Return a tensor on a device of the board, with numbers in it where the server knows how to make some."""
    argument = visit.keep(tvm.runtime.empty(arg.shape, arg.dtype, device))
    fill = visit.function(_FILL)
    if fill:
        fill(argument)
    return argument


def _sampling(visit: Visit, trial: Trial, options: Options) -> dict[str, Any]:
    """Return how a time evaluator takes its samples."""
    usual = {"number": options.number, "repeat": options.repeat, "min_repeat_ms": options.min_repeat_ms}
    if options.cache_flush or not trial.passing_bytes:
        return {**usual, "f_preproc": _FLUSH if options.cache_flush else ""}
    cold = {"number": 1, "repeat": _COLD_REPEAT, "min_repeat_ms": 0}
    passing = visit.function(_PASSING)
    if passing is None:  # a server of TVM itself
        return {**cold, "f_preproc": _FLUSH}
    passing(trial.passing_bytes)
    return {**cold, "f_preproc": _PASSER}


def _sampled(take: Take, spread: float, budget_s: float) -> Samples:
    """Take samples; where they differ much, take them again and keep those with the lower median."""
    start = time.monotonic()
    first = take()
    spent = time.monotonic() - start
    if max(first) <= spread * min(first) or 2 * spent > budget_s:
        return first
    return min(first, take(), key=statistics.median)


def _use_threads(visit: Visit, count: int) -> int:
    """Give a kernel so many threads, or as many as the board has CPUs; return how many, 0 if that is unknown."""
    own = visit.function("edge_toolchain.threads")
    if own is not None:
        try:
            return int(own(count))
        except tvm.error.RPCError as fault:
            if server.PROCESS_ENDED in str(fault):
                raise
            raise InputError(
                f"the board cannot run kernels on {count} threads",
                details=error_text(fault),
                hint="use fewer threads, or 0 for all CPUs of the board",
            ) from fault
    wanted = count or visit.facts("edge_toolchain.hardware").get("cpus", 0)
    configure = visit.function("runtime.config_threadpool") if wanted else None
    if configure is not None:
        configure(_BIG_CORES, int(wanted))
    return int(wanted)
