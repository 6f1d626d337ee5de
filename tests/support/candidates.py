"""Candidates as a search makes them, for the builder: small, endless and impossible ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tvm
from tvm import te

SIZE = 32


def matmul(tile: int = 4) -> tvm.IRModule:
    """A candidate of a search: one matrix product, tiled."""
    a, b = te.placeholder((SIZE, SIZE), name="a"), te.placeholder((SIZE, SIZE), name="b")
    k = te.reduce_axis((0, SIZE), name="k")
    product = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, product])}))
    loops = schedule.get_loops(schedule.get_sblock("product"))
    schedule.split(loops[0], [None, tile])
    return schedule.mod


def unrolled(size: int) -> tvm.IRModule:
    """A candidate that occupies LLVM for a quarter of a millisecond per element."""
    a = te.placeholder((size,), name="a")
    result = te.compute((size,), lambda i: tvm.tirx.exp(a[i]), name="result")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, result])}))
    schedule.unroll(*schedule.get_loops(schedule.get_sblock("result")))
    return schedule.mod


def on_a_gpu() -> tvm.IRModule:
    """A candidate that no CPU can run."""
    schedule = tvm.s_tir.Schedule(matmul())
    schedule.bind(schedule.get_loops(schedule.get_sblock("product"))[0], "threadIdx.x")
    return schedule.mod


def is_right(library: Path) -> bool:
    """Load a library of `matmul` and compare what it computes."""
    left, right = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(np.float32)
    result = tvm.runtime.empty((SIZE, SIZE), "float32")
    tvm.runtime.load_module(str(library))["main"](tvm.runtime.tensor(left), tvm.runtime.tensor(right), result)
    return bool(np.allclose(result.numpy(), left @ right, atol=1e-4))
