"""What was watched on a device becomes rows: a kernel each, its work, and what that is of what the device can do."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.backends.base import Backend
from toolchain.bundle.kernels import Kernel
from toolchain.device.profiling import Call, Peak, Watched

MACHINE = "virtual machine"
"""The row of all that is no kernel: memory and shapes, between them."""
_MACHINES_OWN = "vm.builtin."
_BOUND, _CACHED = 0.5, 1.2
_MOST_GFLOP = 1e9
_DIGITS = re.compile(r"\d+$")
_NO_WORK = (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Row:
    """One call of a kernel in a run.

    Attributes:
        place: Its place among the kernels of a run, from 1 on; 0 for the row of all that is none.
        kernel: Name of its function.
        operator: What it computes, such as `conv2d`.
        shape: Shapes of its arguments and of its result; empty where the graph tells none.
        calls: How many calls of this function a run has.
        ms: Milliseconds of the call: the median of the watched runs.
        share: Of the median of the runs that nobody watched.
        low_ms: 10th percentile.
        high_ms: 90th percentile.
        gflop: Billions of operations of the call; None where nobody counted them.
        gflops: Of them in a second.
        of_peak: That over what the device reaches at most; None without a peak for its numbers.
        gbytes: Billions of bytes of its arguments and its result, each moved once.
        gbytes_s: Of them in a second: a lower bound of what is moved.
        bound: What limits it: `compute`, `memory`, or `neither`; empty without a peak.
        modelled_ms: What a model of the accelerator says it takes; None where a CPU computes it.
        nodes: The nodes of the model's file that it computes, the one with most of the work first; empty where the
            release does not say.
    """

    place: int
    kernel: str
    operator: str
    shape: str
    calls: int
    ms: float
    share: float
    low_ms: float
    high_ms: float
    gflop: float | None = None
    gflops: float | None = None
    of_peak: float | None = None
    gbytes: float = 0.0
    gbytes_s: float | None = None
    bound: str = ""
    modelled_ms: float | None = None
    nodes: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The main node of those that it computes, and how many more there are."""
        return node_text(self.nodes)

    @property
    def brief(self) -> str:
        """Operator, data and result, for people."""
        first, last = self.shape.split(", ")[0].split(" -> ")[0], self.shape.rsplit(" -> ", 1)[-1]
        return f"{self.operator} {first} -> {last}" if self.shape else self.operator


def node_text(nodes: Sequence[str]) -> str:
    """Write the main one of some nodes, and how many more there are."""
    more = f" + {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{nodes[0]}{more}" if nodes else ""


def nodes_in_order(calls: Sequence[Call], kernels: Mapping[str, Kernel]) -> list[tuple[str, ...]]:
    """Return the nodes that each call of a run computes; empty where the graph does not say."""
    total, begun, found = Counter(call.name for call in calls), Counter[str](), []
    for call in calls:
        kernel = kernels.get(call.name)
        found.append(kernel.nodes_of(begun[call.name], total[call.name]) if kernel else ())
        begun[call.name] += 1
    return found


def is_kernel(call: Call) -> bool:
    """Tell whether a call is one of a kernel, and not what the virtual machine does in between."""
    return not call.name.startswith(_MACHINES_OWN)


def rows_of(watched: Watched, kernels: Mapping[str, Kernel], backend: Backend, peak: Peak | None) -> tuple[Row, ...]:
    """Make the rows of a profile, in the order of the calls; the last is that of all that is no kernel.

    Args:
        watched: What the device told.
        kernels: Those of the release's graph, by name.
        backend: The board's.
        peak: What the device reaches with float32; None if that is not known, or not of what computes here.
    """
    plain = float(np.median(watched.plain_ns)) / 1e6
    times = Counter(call.name for call in watched.calls)
    called = [call for call in watched.calls if is_kernel(call)]
    nodes = nodes_in_order(called, kernels)
    made = [
        _row(place, call, kernels.get(call.name), times[call.name], plain, backend, peak, nodes[place - 1])
        for place, call in enumerate(called, 1)
    ]
    own = [call.own_ns for call in watched.calls if not is_kernel(call)]
    if own:
        sums = np.asarray(own, dtype=np.float64).sum(axis=0)
        made.append(Row(0, "", MACHINE, "", len(own), *_times(sums, plain)))
    return tuple(made)


def _times(own_ns: np.ndarray[tuple[int], np.dtype[np.float64]], plain: float) -> tuple[float, float, float, float]:
    """Return median, share of a plain run, and the 10th and 90th percentiles, in ms."""
    low, middle, high = (float(value) / 1e6 for value in np.percentile(own_ns, [10, 50, 90]))
    return middle, middle / plain if plain > 0 else 0.0, low, high


def _row(  # noqa: PLR0913, PLR0917 - a row has these sources
    place: int,
    call: Call,
    kernel: Kernel | None,
    calls: int,
    plain: float,
    backend: Backend,
    peak: Peak | None,
    nodes: tuple[str, ...],
) -> Row:
    ms, share, low, high = _times(np.asarray(call.own_ns, dtype=np.float64), plain)
    seconds = ms / 1e3
    gflop, gbytes = work(kernel, backend) if kernel else None, call.bytes / 1e9
    fitting = peak if kernel and kernel.is_float32 else None
    gflops = gflop / seconds if gflop and seconds else None
    return Row(
        place=place,
        kernel=call.name,
        operator=operator(call.name, kernel, backend),
        shape=kernel.shape if kernel else "",
        calls=calls,
        ms=ms,
        share=share,
        low_ms=low,
        high_ms=high,
        gflop=gflop,
        gflops=gflops,
        of_peak=gflops / fitting.gflops if gflops and fitting else None,
        gbytes=gbytes,
        gbytes_s=gbytes / seconds if seconds else None,
        bound=bound(gflop or 0.0, gbytes, seconds, fitting) if fitting and seconds else "",
        modelled_ms=_modelled(kernel, backend) if kernel else None,
        nodes=nodes,
    )


def operator(name: str, kernel: Kernel | None, backend: Backend) -> str:
    """Name what a kernel computes, after its layer or else after its function."""
    if kernel and kernel.layer:
        try:
            return backend.templates.operator(kernel.layer)
        except _NO_WORK:  # a package may say anything
            pass
    return _DIGITS.sub("", name.removeprefix("fused_"))


def work(kernel: Kernel, backend: Backend) -> float | None:
    """Return billions of operations of a call, a multiply-add counted as two; None where nobody counted them."""
    found = kernel.operations / 1e9
    if kernel.layer:
        try:
            found = float(backend.templates.gflop(kernel.layer))
        except _NO_WORK:
            return None
    return found if math.isfinite(found) and 0 < found < _MOST_GFLOP else None


def _modelled(kernel: Kernel, backend: Backend) -> float | None:
    model = backend.machine_model
    if model is None or not kernel.layer:
        return None
    try:
        choice = json.loads(kernel.choice) if kernel.choice else None
        cycles = model.cycles(kernel.exact or kernel.layer, choice)
    except _NO_WORK:
        return None
    return cycles.cycles / model.clock_mhz / 1e3 if cycles else None


def bound(gflop: float, gbytes: float, seconds: float, peak: Peak) -> str:
    """Say what limits a kernel, by the roofline (Williams et al., 2009): what alone takes half of its time or more.

    Data that came faster than memory gives it was in caches, and then memory is not what limits the kernel.
    """
    computing, moving = gflop / peak.gflops / seconds, gbytes / peak.gbytes_s / seconds
    moving = moving if moving <= _CACHED else 0.0
    if max(computing, moving) < _BOUND:
        return "neither"
    return "compute" if computing >= moving else "memory"
