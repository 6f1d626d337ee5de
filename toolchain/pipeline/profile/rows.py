"""The rows of a profile: a call of a kernel each, with its time, its work and its share of the device's peak."""

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
from toolchain.device.profiling import Call, Watched
from toolchain.device.roofline import Peak, attained

MACHINE = "virtual machine"  # the row of everything between kernels: memory and shapes
_MACHINE_PREFIX = "vm.builtin."
_MAX_GFLOP = 1e9
_DIGITS = re.compile(r"\d+$")
# A package may say anything of its layers, and a profile goes on without what it cannot compute.
_BAD_LAYER = (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Row:
    """One call of a kernel in a run."""

    place: int  # its number among the kernels of a run, from 1 on; 0 for the row of everything else
    kernel: str
    operator: str  # what it computes, such as `conv2d`
    shape: str  # shapes of its arguments and of its result; empty if the graph has none
    calls: int  # how many calls of this function a run has
    ms: float  # median of the watched runs
    share: float  # of the median of the runs that were not watched
    low_ms: float  # 10th percentile
    high_ms: float  # 90th percentile
    gflop: float | None = None  # billions of operations of the call; None if unknown
    gflops: float | None = None  # these in a second
    of_peak: float | None = None  # that over the device's peak; None without a peak for its numbers
    gbytes: float = 0.0  # billions of bytes of its arguments and its result, each moved once
    gbytes_s: float | None = None  # these in a second: a lower bound of the traffic
    bound: str = ""  # what limits it: `compute`, `memory`, or `neither`; empty without a peak
    modelled_ms: float | None = None  # time by a model of the accelerator; None if a CPU computes it
    # The nodes of the model's file that it computes, that with most of the work first; empty if unknown
    nodes: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The main node that it computes, and how many more there are."""
        return node_text(self.nodes)

    @property
    def brief(self) -> str:
        """Operator, data and result."""
        first, last = self.shape.split(", ")[0].split(" -> ")[0], self.shape.rsplit(" -> ", 1)[-1]
        return f"{self.operator} {first} -> {last}" if self.shape else self.operator


def node_text(nodes: Sequence[str]) -> str:
    more = f" + {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{nodes[0]}{more}" if nodes else ""


def nodes_in_order(calls: Sequence[Call], kernels: Mapping[str, Kernel]) -> list[tuple[str, ...]]:
    """Return the nodes that each call of a run computes; empty if the graph does not say."""
    total, earlier, nodes = Counter(call.name for call in calls), Counter[str](), []
    for call in calls:
        kernel = kernels.get(call.name)
        nodes.append(kernel.nodes_of(earlier[call.name], total[call.name]) if kernel else ())
        earlier[call.name] += 1
    return nodes


def is_kernel(call: Call) -> bool:
    """Whether a call is one of a kernel, and not of the virtual machine between kernels."""
    return not call.name.startswith(_MACHINE_PREFIX)


@dataclass(frozen=True)
class _Basis:
    """Everything from which the rows of one profile are computed."""

    kernels: Mapping[str, Kernel]
    backend: Backend
    peak: Peak | None
    plain_ms: float
    calls: Counter[str]

    def row(self, place: int, call: Call, nodes: tuple[str, ...]) -> Row:
        kernel = self.kernels.get(call.name)
        ms, share, low, high = self.times(np.asarray(call.own_ns, dtype=np.float64))
        seconds = ms / 1e3
        gflop, gbytes = work(kernel, self.backend) if kernel else None, call.bytes / 1e9
        peak = self.peak if kernel and kernel.is_float32 else None  # the peak is that of float32
        gflops = gflop / seconds if gflop and seconds else None
        return Row(
            place=place,
            kernel=call.name,
            operator=operator(call.name, kernel, self.backend),
            shape=kernel.shape if kernel else "",
            calls=self.calls[call.name],
            ms=ms,
            share=share,
            low_ms=low,
            high_ms=high,
            gflop=gflop,
            gflops=gflops,
            of_peak=gflops / peak.gflops if gflops and peak else None,
            gbytes=gbytes,
            gbytes_s=gbytes / seconds if seconds else None,
            bound=attained(gflop or 0.0, gbytes, seconds, peak).bound if peak and seconds else "",
            modelled_ms=_modelled(kernel, self.backend) if kernel else None,
            nodes=nodes,
        )

    def times(self, own_ns: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float, float, float]:
        """Return median, share of a plain run, and the 10th and 90th percentiles, in ms."""
        low, middle, high = (float(value) / 1e6 for value in np.percentile(own_ns, [10, 50, 90]))
        return middle, middle / self.plain_ms if self.plain_ms > 0 else 0.0, low, high


def rows_of(watched: Watched, kernels: Mapping[str, Kernel], backend: Backend, peak: Peak | None) -> tuple[Row, ...]:
    """Return the rows of a profile, in the order of the calls; the last one is of everything between kernels.

    `peak` is what the device reaches with float32; None if that is unknown, or not of the processor that computes.
    """
    plain_ms = float(np.median(watched.plain_ns)) / 1e6
    basis = _Basis(kernels, backend, peak, plain_ms, Counter(call.name for call in watched.calls))
    calls = [call for call in watched.calls if is_kernel(call)]
    nodes = nodes_in_order(calls, kernels)
    rows = [basis.row(place, call, nodes[place - 1]) for place, call in enumerate(calls, 1)]
    others = [call.own_ns for call in watched.calls if not is_kernel(call)]
    if others:
        sums = np.asarray(others, dtype=np.float64).sum(axis=0)
        rows.append(Row(0, "", MACHINE, "", len(others), *basis.times(sums)))
    return tuple(rows)


def operator(name: str, kernel: Kernel | None, backend: Backend) -> str:
    """Name what a kernel computes, after its layer or else its function."""
    if kernel and kernel.layer:
        try:
            return backend.templates.operator(kernel.layer)
        except _BAD_LAYER:
            pass
    return _DIGITS.sub("", name.removeprefix("fused_"))


def work(kernel: Kernel, backend: Backend) -> float | None:
    """Return billions of operations of a call, a multiply-add counted as two; None if unknown."""
    gflop = kernel.operations / 1e9
    if kernel.layer:
        try:
            gflop = float(backend.templates.gflop(kernel.layer))
        except _BAD_LAYER:
            return None
    return gflop if math.isfinite(gflop) and 0 < gflop < _MAX_GFLOP else None


def _modelled(kernel: Kernel, backend: Backend) -> float | None:
    model = backend.machine_model
    if model is None or not kernel.layer:
        return None
    try:
        choice = json.loads(kernel.choice) if kernel.choice else None
        cycles = model.cycles(kernel.exact or kernel.layer, choice)
    except _BAD_LAYER:
        return None
    return cycles.cycles / model.clock_mhz / 1e3 if cycles else None
