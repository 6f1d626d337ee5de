"""What is done on a board in one session: the canary, and a trial."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm

from toolchain import board_server, process
from toolchain.errors import InputError
from toolchain.remote import Session
from toolchain.tuning.health import Pulse
from toolchain.tuning.trials import Cause, Options, TensorArg, Trial

_ENTRY = "main"
_FLUSH = "cache_flush_cpu_non_first_arg"
_PASSER = "edge_toolchain.pass_through_caches"
_PASSING = "edge_toolchain.passing_bytes"
_COLD_REPEAT = 15  # samples of a single run each, of which the median counts
_FILL = "tvm.contrib.random.random_fill_for_measure"
_BIG_CORES = 1
_MOST_WORDS = 2000
_LITTLE = 1 << 16
# What TVM's client says of a connection that ended without words.
_LOST = ("Channel closes", "code=kShutdown", "Connection reset", "Broken pipe", "SockChannel", "previously closed")


Samples = tuple[float, ...]


class Visit:
    """A session, with all that it has on the board.

    TVM frees what a variable holds on the board by a call that waits for the board with Python's lock held, and nobody
    could cut that short. So everything is kept here until the session is closed.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._kept: list[Any] = []

    def keep(self, thing: Any) -> Any:
        """Keep something on the board until the session is closed."""
        self._kept.append(thing)
        return thing

    def function(self, name: str) -> Any:
        """Return a function of the server; None if it has none of that name."""
        try:
            return self.keep(self.session.rpc.get_function(name))
        except AttributeError:
            return None

    def facts(self, name: str) -> dict[str, Any]:
        """Return what a function of the server says in JSON; empty if there is no such function."""
        function = self.function(name)
        found = json.loads(function()) if function else {}
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        """End the session, and only then let everything go."""
        self.session.close()
        self._kept.clear()


@contextlib.contextmanager
def visiting(session: Session) -> Iterator[Visit]:
    """Close a session at the end of a block."""
    visit = Visit(session)
    try:
        yield visit
    finally:
        visit.close()


def pulse(visit: Visit, milliseconds: int) -> Pulse:
    """Let a board do a fixed amount of work; where it knows none, a trivial call shows that it is alive."""
    address = visit.session.address
    canary = visit.function("edge_toolchain.canary")
    if canary is None:
        visit.function("runtime.NumThreads")
        return Pulse(address)
    celsius = visit.facts("edge_toolchain.conditions").get("celsius")
    return Pulse(address, float(canary(milliseconds)), None if celsius is None else float(celsius))


def send_something(visit: Visit) -> None:
    """Let a board store a little: one whose disk is full fails every trial, and none is to blame."""
    visit.session.rpc.upload(bytearray(_LITTLE), "canary")


def measured(visit: Visit, trial: Trial, options: Options, spread: float, budget_s: float) -> Samples:
    """Measure a trial.

    Args:
        visit: The session to do it in.
        trial: The trial.
        options: How it is measured.
        spread: Ratio of the slowest to the fastest sample beyond which samples are taken again.
        budget_s: Seconds that running it may take; samples are taken again only if there is time for it.

    Returns:
        Seconds of one run, one value per sample.

    Raises:
        RuntimeError: What TVM makes of anything that goes wrong on the board or on the way.
        InputError: The board has not so many CPUs.
        OSError: The library cannot be read.
    """
    rpc = visit.session.rpc
    name = f"trial{trial.library.suffix}"
    rpc.upload(bytearray(trial.library.read_bytes()), name)
    module = visit.keep(rpc.load_module(name))
    _use_threads(visit, options.threads)
    # What TVM's target calls by its compiler is the device `cpu`.
    device = rpc.device("cpu" if options.device == "llvm" else options.device, 0)
    arguments = [_argument(visit, arg, device) for arg in trial.args]
    evaluate = visit.keep(module.time_evaluator(_ENTRY, device, **_sampling(visit, trial, options)))
    return _sampled(lambda: tuple(float(value) for value in evaluate(*arguments).results), spread, budget_s)


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


def _sampled(take: Callable[[], Samples], spread: float, budget_s: float) -> Samples:
    """Take samples; where they differ much, take them again and keep those with the lower median."""
    start = time.monotonic()
    first = take()
    spent = time.monotonic() - start
    if max(first) <= spread * min(first) or 2 * spent > budget_s:
        return first
    return min(first, take(), key=statistics.median)


def _use_threads(visit: Visit, count: int) -> None:
    """Give a kernel so many threads, or as many as the board has CPUs."""
    own = visit.function("edge_toolchain.threads")
    if own is not None:
        try:
            own(count)
        except tvm.error.RPCError as fault:
            if board_server.PROCESS_ENDED in str(fault):
                raise
            raise InputError(
                f"the board cannot run kernels on {count} threads",
                details=words(fault),
                hint="choose fewer threads, or 0 for every CPU of the board",
            ) from fault
        return
    wanted = count or visit.facts("edge_toolchain.hardware").get("cpus", 0)
    configure = visit.function("runtime.config_threadpool") if wanted else None
    if configure is not None:
        configure(_BIG_CORES, int(wanted))


@dataclass(frozen=True)
class Failure:
    """Why a trial has no samples.

    Attributes:
        cause: What it is if it is the candidate's fault.
        error: In whose words.
        told: Whether the server told it; else the connection just ended, or nothing came.
    """

    cause: Cause
    error: str
    told: bool


def failure(fault: Exception) -> Failure:
    """Sort what TVM raises, or what a deadline does."""
    if isinstance(fault, TimeoutError) or board_server.SESSION_EXPIRED in str(fault):
        return Failure("timeout", words(fault), told=True)
    if not isinstance(fault, RuntimeError):  # a deadline
        return Failure("timeout", str(fault), told=False)
    if isinstance(fault, tvm.error.RPCError):
        return Failure("crash" if board_server.PROCESS_ENDED in str(fault) else "refused", words(fault), told=True)
    if any(sign in str(fault) for sign in _LOST):
        return Failure("crash", "the connection ended while it ran", told=False)
    return Failure("refused", words(fault), told=True)


def words(fault: Exception) -> str:
    """Return what a board says without TVM's way of saying it."""
    text = str(fault).replace("RPCError: Error caught from RPC call:\n", "").strip()
    return process.tail(text)[-_MOST_WORDS:] or type(fault).__name__
