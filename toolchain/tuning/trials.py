"""The types that search, builder and measurement share; imports no TVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from toolchain.records.lines import USUAL
from toolchain.records.results import Cause, TensorArg

if TYPE_CHECKING:
    import tvm

    from toolchain.records.tasks import Task


@dataclass(frozen=True)
class Options:
    """How a candidate is measured.

    Attributes:
        number: Runs that one sample is the mean of.
        repeat: Samples.
        min_repeat_ms: Least duration of a sample in milliseconds; `number` grows until it is reached.
        cooldown_s: Seconds that a board rests between two trials.
        cache_flush: Whether the arguments but the first are flushed from the CPU's caches before each sample.
        timeout_s: Seconds that running a candidate may take.
        build_timeout_s: Seconds that compiling it may take.
        threads: Threads that a kernel runs on; 0 means every CPU of the board.
        device: What a kernel runs on, as TVM calls it: the kind of its target.
    """

    number: int = USUAL["number"]
    repeat: int = USUAL["repeat"]
    min_repeat_ms: int = USUAL["min_repeat_ms"]
    cooldown_s: float = 0.0
    cache_flush: bool = bool(USUAL["cache_flush"])
    timeout_s: float = 10.0
    build_timeout_s: float = 30.0
    threads: int = 0
    device: str = "llvm"

    @property
    def recorded(self) -> dict[str, int]:
        """The options that a latency depends on, as records store them."""
        return {name: int(getattr(self, name)) for name in USUAL}


@dataclass(frozen=True)
class Built:
    """The result of building one candidate.

    Attributes:
        library: Shared library for the board; None if the build failed.
        error: Why it failed.
        seconds: Duration of the build, without the time spent waiting for a worker.
    """

    library: Path | None
    error: str
    seconds: float


@dataclass(frozen=True)
class Rival:
    """A built candidate that is measured in turns with another; see `Trial`."""

    library: Path
    args: tuple[TensorArg, ...]


@dataclass(frozen=True)
class Trial:
    """One built candidate to be measured; in a final, the untuned kernel with its rivals.

    Attributes:
        library: Shared library with the kernel, whose entry function is `main`.
        args: The kernel's arguments in order.
        name: Name of the kernel.
        passing_bytes: Bytes that pass through the board's caches before each sample, as the weights of a network's
            other layers do between two runs of one. A sample is then a single run. 0: the caches stay warm.
        gflop: Billions of floating-point operations of one run; 0 if unknown.
        rivals: Candidates that are measured in turns with it, on the same board.
    """

    library: Path
    args: tuple[TensorArg, ...]
    name: str = ""
    passing_bytes: int = 0
    gflop: float = 0.0
    rivals: tuple[Rival, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The result of one trial.

    Attributes:
        samples_s: Seconds of one run, one value per sample, or per turn where there are rivals; empty if it failed.
        cause: Why it failed.
        error: The message of the board or the compiler.
        board: Name of the board that it was measured on, or that it failed on.
        attempts: How many boards it was given to.
        seconds: Duration on the board that answered, upload included.
        rivals_s: Seconds of one run of each rival in the same turns; fewer where it was dropped early.
    """

    samples_s: tuple[float, ...]
    cause: Cause = ""
    error: str = ""
    board: str = ""
    attempts: int = 1
    seconds: float = 0.0
    rivals_s: tuple[tuple[float, ...], ...] = ()


class Builds(Protocol):
    """Compiles candidates: `builder.Builder`, or a stand-in."""

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Compile and link scheduled modules."""

    def discard(self, built: Built) -> None:
        """Remove a library that was measured."""


class Measures(Protocol):
    """Measures candidates: `measure.MeasurePool`, or a stand-in."""

    def submit(self, trial: Trial) -> Future[Measured]:
        """Take a trial; the future raises DeviceError if no board is left."""


@dataclass(frozen=True)
class Trials:
    """How the candidates of a run are built and measured, in the search and in the finals alike.

    Attributes:
        builds: Compiles candidates.
        measures: Measures them.
        complete: Applies to a candidate's module what a build of the model applies to it.
        passing_bytes: Returns the bytes that pass through the caches between two runs of a task's kernel.
    """

    builds: Builds
    measures: Measures
    complete: Callable[[tvm.IRModule], tvm.IRModule]
    passing_bytes: Callable[[Task], int]

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Compile and link scheduled modules as a build of the model would."""
        return self.builds.build([self.complete(module) for module in modules]) if modules else []


def examples_path(library: Path) -> Path:
    """Return where the examples of a kernel's arguments are stored beside its library; most kernels have none."""
    return library.with_suffix(".npz")
