"""Buffers that kernels read as images: on Intel's OpenCL, which has such views, and as buffers on PoCL."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te

from tests.integration.test_board_server import KINDS, built, close, load
from tests.integration.test_board_server import running as serving
from tests.support import opencl, opencl_runtimes
from tests.support.opencl_runtimes import INTEL, POCL

SIZE = 2048
HOOK = "tvm_callback_opencl_postproc"
KERNEL = """// Function: main_kernel
{line}
#ifdef EDGE_IMAGES
#define ARGUMENT __read_only image2d_t x
#define TEXEL read_imagef(x, plain, (int2)((i / 4) % {width}, (i / 4) / {width}))
#else
#define ARGUMENT __global const {kind}* restrict x
#define TEXEL vload4(i / 4, x)
#endif
__kernel void main_kernel(ARGUMENT, __global float* restrict y) {{
  const sampler_t plain = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;
  const int i = (int)get_global_id(0);
  const float4 texel = {convert}(TEXEL);
  y[i] = 2.0f * (i % 4 == 0 ? texel.x : i % 4 == 1 ? texel.y : i % 4 == 2 ? texel.z : texel.w);
}}
"""


def module(dtype: str) -> tvm.IRModule:
    """Return y = 2 * x, of which the hook writes the kernel."""
    x = te.placeholder((SIZE,), dtype, name="x")
    y = te.compute((SIZE,), lambda i: x[i].astype("float32") * 2.0, name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    outer, inner = schedule.split(*schedule.get_loops(schedule.get_sblock("y")), factors=[None, 64])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return schedule.mod


@contextlib.contextmanager
def kernels_are(source: str) -> Iterator[None]:
    """Have the compiler put this source into libraries."""
    before = tvm_ffi.get_global_func(HOOK, allow_missing=True)
    tvm_ffi.register_global_func(HOOK, lambda _source, _target: source, override=True)
    try:
        yield
    finally:
        tvm_ffi.registry.remove_global_func(HOOK)
        if before is not None:
            tvm_ffi.register_global_func(HOOK, before, override=True)


def library(folder: Path, line: str = "", *, width: int = 64, dtype: str = "float32") -> Path:
    kind = "half" if dtype == "float16" else "float"
    line = line or f"// edge-image: 0 {kind} {width} {SIZE // 4 // width}"
    convert = "convert_float4" if kind == "half" else ""
    with kernels_are(KERNEL.format(line=line, width=width, kind=kind, convert=convert)):
        return opencl.export(module(dtype), folder / "kernel.so")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Return a function that starts a server on one of the OpenCLs, and one that tells what it asked for."""
    shim = opencl.Shim(tmp_path / "shim")
    with contextlib.ExitStack() as stack:

        def start(name: str):
            opencl_runtimes.require_one(name)
            for variable, value in {**shim.env(), **opencl_runtimes.environment(name)}.items():
                monkeypatch.setenv(variable, value)
            program = built(KINDS[platform.machine()])
            return stack.enter_context(serving(program, tmp_path)).connect()

        yield start, shim.counts


def doubled(session, kernel, x):
    device = session.device("opencl", 0)
    out = tvm.runtime.tensor(np.zeros(SIZE, np.float32), device)
    kernel(tvm.runtime.tensor(x, device), out)
    return out.numpy()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_buffer_is_read_as_an_image(server, tmp_path, dtype):
    """A hundred buffers one after the other, which get each other's addresses: each has an image of its own."""
    start, counts = server
    session = start(INTEL)
    kernel = load(session, library(tmp_path, dtype=dtype))["main"]
    for number in range(100):
        x = (np.arange(SIZE) % 97 + number).astype(dtype)
        np.testing.assert_array_equal(doubled(session, kernel, x), 2 * x.astype(np.float32))
    counted = counts()
    assert counted.images == 100
    assert counted.buffers - counted.buffers_freed <= 4
    close(session)


def test_an_image_is_kept_for_as_long_as_its_buffer(server, tmp_path):
    start, counts = server
    session = start(INTEL)
    kernel = load(session, library(tmp_path))["main"]
    device = session.device("opencl", 0)
    x, y = (tvm.runtime.tensor(np.zeros(SIZE, np.float32), device) for _ in range(2))
    for number in range(20):
        values = np.full(SIZE, number, np.float32)
        x.copyfrom(values)
        kernel(x, y)
        np.testing.assert_array_equal(y.numpy(), 2 * values)
    assert counts().images == 1
    close(session)


BUFFERS = {
    "rows that the device does not have": (INTEL, "// edge-image: 0 float 32 16", {}),
    "a row that is too long": (INTEL, "// edge-image: 0 float 524288 1", {}),
    "no such views": (POCL, "// edge-image: 0 float 64 8", {}),
    "images that are refused": (INTEL, "// edge-image: 0 float 64 8", {"EDGE_OPENCL_IMAGES": "0"}),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_what_a_device_has_no_image_of_is_read_as_a_buffer(server, tmp_path, monkeypatch, name):
    runtime, line, environment = BUFFERS[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    start, counts = server
    session = start(runtime)
    x = np.arange(SIZE, dtype=np.float32)
    np.testing.assert_array_equal(doubled(session, load(session, library(tmp_path, line))["main"], x), 2 * x)
    assert counts().images == 0
    close(session)


@pytest.mark.parametrize("refused", ["", "0"])
def test_a_kept_kernel_is_for_images_or_for_buffers(server, tmp_path, monkeypatch, refused):
    """What was kept for the one is never taken for the other."""
    monkeypatch.setenv("EDGE_OPENCL_CACHE", str(tmp_path / "kept"))
    start, counts = server
    kernels, x = library(tmp_path), np.arange(SIZE, dtype=np.float32)
    for images in (refused, "0" if not refused else ""):
        monkeypatch.setenv("EDGE_OPENCL_IMAGES", images)
        session = start(INTEL)
        np.testing.assert_array_equal(doubled(session, load(session, kernels)["main"], x), 2 * x)
        assert counts().images == (0 if images else 1)
        close(session)


REFUSED = {
    "more than the buffer": (INTEL, "// edge-image: 0 float 64 9", "making an image of a buffer .*failed: "),
    "not a number": (POCL, "// edge-image: x float 64 8", "has an invalid image line: // edge-image: x"),
    "no type": (POCL, "// edge-image: 0 double 64 8", "has an invalid image line"),
    "no such argument": (POCL, "// edge-image: 2 float 64 8", "has an invalid image line"),
    "nothing": (POCL, "// edge-image: 0 float 0 8", "has an invalid image line"),
    "more words": (POCL, "// edge-image: 0 float 64 8 9", "has an invalid image line"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_an_image_is_refused(server, tmp_path, name):
    runtime, line, message = REFUSED[name]
    session = server[0](runtime)
    loaded = load(session, library(tmp_path, line))
    with pytest.raises((RuntimeError, ValueError), match=message):
        doubled(session, loaded["main"], np.zeros(SIZE, np.float32))
    close(session)
