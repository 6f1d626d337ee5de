"""Where the time of our build goes: each kernel's work and speed against the most that the cores can do."""

from __future__ import annotations

import collections
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import load_json
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.script import tirx
from tvm.target import codegen

from toolchain import bundle as bundles
from toolchain.records.tasks import layer_of

if TYPE_CHECKING:
    from _peers import Ours

    from toolchain.backends.base import Templates
    from toolchain.bundle import Bundle

_STEPS = 100_000
_PEAK_S = 0.5
_RUNS = 20
_FLOAT_BITS = 32


@dataclass(frozen=True)
class Kernel:
    """What all calls of one kernel take in one run of the network.

    Attributes:
        name: The kernel's function.
        shapes: Shapes of its first argument and of its output.
        calls: How often a run calls it.
        ms: Time of these calls together, the median over some runs.
        gflop: Work of these calls together; None if it is unknown.
        layer: What it computes, if a template wrote it.
    """

    name: str
    shapes: str
    calls: int
    ms: float
    gflop: float | None
    layer: dict[str, Any] | None

    @property
    def gflops(self) -> float | None:
        """Billions of operations a second."""
        return None if self.gflop is None or self.ms <= 0 else self.gflop / self.ms * 1000


def peak_gflops(target: tvm.target.Target, threads: int) -> float:
    """Measure how many billions of float32 operations a second the cores can do, a multiply-add counted as two.

    Every thread does nothing but multiply-adds of vectors in registers. How many registers hide the instruction's
    latency and still fit depends on the core, so the best of some numbers counts.
    """
    lanes = max(codegen.llvm_get_vector_width(target), 128) // _FLOAT_BITS
    return max(_fma_rate(target, threads, registers, lanes) for registers in (8, 10, 12, 16, 24))


def _fma_rate(target: tvm.target.Target, threads: int, registers: int, lanes: int) -> float:
    run = tvm.compile(tvm.IRModule({"fma": _fma(threads, registers, lanes)}), target=target)["fma"]
    # 0.5 x + 0.5 tends to 1: neither overflow nor denormals, which are slow.
    factor = tvm.runtime.tensor(np.full(lanes, 0.5, np.float32))
    out = tvm.runtime.tensor(np.zeros((threads, registers, lanes), np.float32))
    seconds = []
    end = time.perf_counter() + _PEAK_S
    while time.perf_counter() < end:
        start = time.perf_counter()
        run(factor, out)
        seconds.append(time.perf_counter() - start)
    return 2 * threads * registers * lanes * _STEPS / min(seconds) / 1e9


def _fma(threads: int, registers: int, lanes: int) -> tvm.tirx.PrimFunc:
    # Without `noalias` LLVM reloads and stores every register at every step, and half of the peak is measured.
    @tirx.prim_func(s_tir=True)
    def fma(factor: tirx.Buffer((lanes,), "float32"), out: tirx.Buffer((threads, registers, lanes), "float32")):  # noqa: ANN202
        tirx.func_attr({"global_symbol": "fma", "tirx.noalias": True, "tirx.is_scheduled": True})
        for t in tirx.parallel(threads):
            held = tirx.alloc_buffer((registers, lanes), "float32", scope="local")
            for r in tirx.unroll(registers):
                for i in tirx.vectorized(lanes):
                    held[r, i] = factor[i]
            for _ in tirx.serial(_STEPS):
                for r in tirx.unroll(registers):
                    for i in tirx.vectorized(lanes):
                        held[r, i] = held[r, i] * factor[i] + factor[i]
            for r in tirx.unroll(registers):
                for i in tirx.vectorized(lanes):
                    out[t, r, i] = held[r, i]

    return fma


def kernels(engine: Ours, bundle: Bundle, templates: Templates) -> list[Kernel]:
    """Time every kernel of a bundle while the whole network runs, so that each finds the caches as it does there.

    Args:
        engine: The bundle, loaded and with its inputs set.
        bundle: The same bundle.
        templates: The backend's, which know the work of their layers.

    Returns:
        The kernels, those that take the longest first.
    """
    functions = _functions(bundle)
    found = []
    timed, shapes = _timed(engine)
    for name, calls in timed.items():
        layer, gflop = _work(functions.get(name), templates)
        ms = float(np.median(np.sum(calls, axis=0))) * 1000
        total = None if gflop is None else gflop * len(calls)
        found.append(Kernel(name, shapes[name], len(calls), ms, total, layer))
    return sorted(found, key=lambda one: -one.ms)


class _Clock:
    """What the virtual machine calls before and after each kernel.

    Attributes:
        runs: The kernels of each run in order, with the seconds that each took.
        shapes: By kernel, the shapes of its first argument and of its last, which is the output.
    """

    def __init__(self) -> None:
        self.runs: list[list[tuple[str, float]]] = []
        self.shapes: dict[str, str] = {}
        self._started = 0.0

    def __call__(self, _function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:  # noqa: FBT001
        now = time.perf_counter()
        if name.startswith("vm."):  # memory and the like
            return 0
        if before and name not in self.shapes:
            ends = (arguments[0].shape, arguments[-1].shape)
            self.shapes[name] = " -> ".join("x".join(map(str, shape)) for shape in ends)
        if not before:
            self.runs[-1].append((name, now - self._started))
        self._started = time.perf_counter()
        return 0


def _timed(engine: Ours) -> tuple[dict[str, list[list[float]]], dict[str, str]]:
    """Return the seconds of each call of each kernel, by its place in a run, then by run; and the kernels' shapes."""
    clock = _Clock()
    engine.run()
    engine.machine.set_instrument(clock)
    for _ in range(_RUNS):
        clock.runs.append([])
        engine.run()
    found = collections.defaultdict(list)
    for calls in zip(*clock.runs, strict=True):
        found[calls[0][0]].append([seconds for _, seconds in calls])
    return found, clock.shapes


def _functions(bundle: Bundle) -> dict[str, tvm.tirx.PrimFunc]:
    """Return the kernels of a bundle by name; those that `tvm.compile` makes of operators are made again."""
    module = load_json((bundle.folder / bundles.GRAPH).read_text(encoding="utf-8"))
    return {
        variable.name_hint: function
        for variable, function in relax.transform.LegalizeOps()(module).functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }


def _work(function: tvm.tirx.PrimFunc | None, templates: Templates) -> tuple[dict[str, Any] | None, float | None]:
    """Return the layer of a kernel, if it is a template's, and the GFLOP of one call, if they are known.

    A template knows the work of its layer: its code may do less, as Winograd's does.
    """
    if function is None:
        return None, None
    layer = layer_of(function)
    if layer:
        return json.loads(layer), templates.gflop(layer)
    try:
        return None, float(estimate_tir_flops(tvm.IRModule({"main": function}))) / 1e9
    except (RuntimeError, ValueError, TypeError):  # it knows no vectors and no open loops
        return None, None
