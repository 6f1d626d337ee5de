"""Kernels on bytes, run on numpy arrays and compared with numpy: what the tests of the int8 templates share.

Arrays are NCHW here. The reference works in float64 on the numbers that the bytes stand for.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tvm
from tvm.target import codegen

from tests.support import paths
from tests.support.cpu_kernels import AARCH64, ARMV7, NATIVE, applied, run, unblocked
from tests.support.parts import require, require_processor
from toolchain.backends.cpu.kernels.int8 import grids
from toolchain.backends.cpu.layers import Activation, Conv, ImageLayer, Pool
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.quantization import LEAST, Grid

WIDE, MIDDLE, NARROW = (
    Machine(16, 32, "vpdpbusd", 2),
    Machine(8, 16, "vpdpbusd", 2),
    Machine(4, 16, "vpdpbusd", 2),
)
CORTEX_A76 = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 2})
CORTEX_A720 = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a720", "num-cores": 2})
CORES = {"cortex-a720": CORTEX_A720, "cortex-a76": CORTEX_A76, "cortex-a72": AARCH64, "cortex-a9": ARMV7}
"""Arm cores that multiply matrices of bytes, with dot products, and without; see `emulated`."""

EMULATORS = {
    "aarch64-linux-gnu": ("aarch64-linux-gnu", "qemu-aarch64-static"),
    "armv7l-linux-gnueabihf": ("arm-linux-gnueabihf", "qemu-arm-static"),
}
"""By LLVM's triple: the compiler's, and what runs its programs."""

MACHINES = {"wide": WIDE, "middle": MIDDLE, "narrow": NARROW}

# No two scales have a simple ratio: numbers half way between two bytes come up in tests of rounding only.
DATA, OTHER, RESULT = Grid(0.015 * 2**0.5, 77), Grid(0.01 * 3**0.5, 33), Grid(0.009 * 5**0.5, 120)
BETWEEN = Grid(0.005 * 7**0.5, 101)


def require_dot() -> None:
    """Leave a test out on a processor without dot products of bytes."""
    features = {str(name) for name in codegen.llvm_get_cpu_features(NATIVE)}
    require_processor("avx512vnni", present={"avx512vnni", "avx512vl"} <= features)


def emulated(
    function: tvm.tirx.PrimFunc,
    arrays: Sequence[np.ndarray],
    result: np.ndarray,
    folder: Path,
    target: tvm.target.Target = CORTEX_A76,
) -> np.ndarray:
    """Build a kernel for an Arm core, call it under emulation and return the result; arguments as for `run`."""
    triple = str(target.attrs["mtriple"])
    triple, emulator = EMULATORS[triple]
    compiler = f"{triple}-gcc"
    for program, package in ((compiler, f"gcc-{triple}"), (emulator, "qemu-user-static")):
        require(program, package, shutil.which(program) is not None)
    library = tvm.compile(tvm.IRModule({"main": function}), target=target)
    library.mod.write_to_file(str(folder / "kernel.o"), "o")
    codes = {"i": 0, "u": 1, "f": 2}
    with (folder / "arguments").open("wb") as stream:
        for array in (*arrays, result):
            whole = np.ascontiguousarray(array)
            header = [codes[whole.dtype.kind], whole.itemsize * 8, whole.ndim, whole.nbytes, *whole.shape]
            stream.write(np.array(header, "<i8").tobytes() + whole.tobytes())
    source = paths.DATA / "kernel_main.c"
    command = [compiler, "-static", "-O1", "-o", "kernel", str(source), "kernel.o"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run([emulator, "./kernel", "arguments", "result"], cwd=folder, check=True)
    return np.fromfile(folder / "result", result.dtype).reshape(result.shape)


def signed(layer: Any) -> Any:
    """Return a layer with int8 for uint8."""

    def place(one: Activation) -> Activation:
        return replace(one, dtype="int8" if one.dtype == "uint8" else one.dtype)

    epilogue = tuple(replace(op, other=place(op.other) if op.other else None) for op in layer.epilogue)
    return replace(layer, data=place(layer.data), out=place(layer.out), epilogue=epilogue)


def numbers(array: np.ndarray, grid: Grid) -> np.ndarray:
    """Return what bytes stand for."""
    return (array.astype(np.float64) - grid.zero) * grid.scale


def rounded(array: np.ndarray, grid: Grid, dtype: str = "uint8") -> np.ndarray:
    """Return the nearest bytes, half way to the even one."""
    least = LEAST[dtype]
    return np.clip(np.rint(array / grid.scale) + grid.zero, least, least + 255).astype(dtype)


def random_bytes(shape: Sequence[int], seed: int = 0, dtype: str = "uint8") -> np.ndarray:
    """Return equally distributed bytes."""
    least = LEAST[dtype]
    return np.random.default_rng(seed).integers(least, least + 256, shape).astype(dtype)


def blocked(array: np.ndarray, place: Activation) -> np.ndarray:
    """Return an NCHW array as the buffer that `place` describes; all else in there is 77."""
    count, channels, height, width = array.shape
    padded = np.full((count, place.blocks * place.lanes, height, width), 77, array.dtype)
    padded[:, :channels] = array
    buffer = np.full(place.shape, 77, array.dtype)
    split = padded.reshape(count, place.blocks, place.lanes, height, width).transpose(0, 1, 3, 4, 2)
    buffer[:, place.first : place.first + place.blocks] = split if place.lanes > 1 else split[..., 0]
    return buffer


@dataclass(frozen=True)
class Inputs:
    """Arrays for a layer on bytes.

    Attributes:
        data: NCHW: bytes, or numbers.
        data_grid: Grid of the data.
        others: Bytes of the epilogue `add`.
        grids: As `int8_grids.parameters` takes them.
        weights: int16 OIHW.
        weight_scales: One for each output channel.
        bias: In the unit of the products.
    """

    data: np.ndarray
    data_grid: Grid
    others: tuple[np.ndarray, ...]
    grids: tuple[Grid, ...]
    weights: np.ndarray
    weight_scales: np.ndarray
    bias: np.ndarray


def byte(layer: Any) -> str:
    """Return the type of a layer's bytes."""
    return layer.data.dtype if layer.data.dtype != "float32" else layer.out.dtype


def of_byte(grid: Grid, layer: Any) -> Grid:
    """Return the grid of uint8 for the same numbers in a layer's type of bytes."""
    return replace(grid, zero=grid.zero + LEAST[byte(layer)])


def conv(
    data: tuple[int, int, int, int],
    channels: int,
    kernel: tuple[int, int],
    lanes: int,
    **options: Any,
) -> Conv:
    """Return a convolution of bytes; the options are fields of the layer, or `few` for blocks of 4 channels."""
    batch, inputs, *size = data
    lanes_in = 4 if options.pop("few", False) else lanes
    layer = Conv(
        Activation(batch, inputs, *size, lanes_in, dtype="uint8"), Activation(1, 1, 1, 1, lanes), kernel, **options
    )
    (top, left, bottom, right), reach = layer.padding, zip(layer.kernel, layer.dilation, strict=True)
    height, width = (
        (extent + pad - dilated * (taps - 1) - 1) // stride + 1
        for extent, pad, stride, (taps, dilated) in zip(
            size, (top + bottom, left + right), layer.strides, reach, strict=True
        )
    )
    out = Activation(batch, channels, height, width, lanes, dtype="uint8")
    epilogue = tuple(replace(op, other=op.other or out) if op.kind in {"add", "mul"} else op for op in layer.epilogue)
    return replace(layer, out=out, epilogue=epilogue)


def inputs_of(layer: ImageLayer, spread: float = 40.0) -> Inputs:
    """Return random arrays for a layer, always the same; results have a deviation of about 40 steps of a grid."""
    shape = (layer.data.batch, layer.data.channels, layer.data.height, layer.data.width)
    if layer.data.dtype == "float32":
        data, grid = np.random.default_rng(0).standard_normal(shape).astype(np.float32), Grid(1.0, 0)
    else:
        data, grid = random_bytes(shape, 0, layer.data.dtype), of_byte(DATA, layer)
    placed = [(seed, op.other) for seed, op in enumerate(layer.epilogue, 1) if op.other]
    others = [random_bytes((one.batch, one.channels, one.height, one.width), seed, one.dtype) for seed, one in placed]
    kinds = {"add": OTHER, "mul": OTHER, "quantize": BETWEEN}
    needed = [of_byte(kinds[op.kind], layer) for op in layer.epilogue if op.kind in kinds]
    needed += [of_byte(RESULT, layer)] if layer.out.dtype != "float32" else []
    if not isinstance(layer, Conv):
        return Inputs(data, grid, tuple(others), tuple(needed), np.zeros(0), np.zeros(0), np.zeros(0))
    rng = np.random.default_rng(9)
    products = float(np.prod(layer.weights_shape[1:]))
    unit = spread * RESULT.scale / (grid.scale * np.sqrt(products) * 74 * 74)
    return Inputs(
        data,
        grid,
        tuple(others),
        tuple(needed),
        rng.integers(-128 if _is_unpaired(layer) else -127, 128, layer.weights_shape).astype(np.int16) + _raised(layer),
        rng.uniform(0.5, 1.5, layer.out.channels) * unit,
        rng.integers(-9999, 9999, layer.out.channels).astype(np.float64),
    )


def _is_unpaired(layer: Conv) -> bool:
    """Whether weights may be -128: on processors without dot products, their kernel must know."""
    return layer.unpaired or layer.data.dtype == "uint8"


def _raised(layer: Conv) -> np.ndarray:
    """Return by how much the weights of each output channel lie higher: of a third of them, by nothing."""
    raised = np.arange(layer.out.channels) % 3 * 100 - 100 if layer.offset else np.zeros(layer.out.channels)
    return raised.astype(np.int16)[:, None, None, None]


def convolved(layer: Conv, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a convolution in float64."""
    (top, left, bottom, right), (down, across), (reach, spread) = layer.padding, layer.strides, layer.dilation
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    height, width, groups = layer.out.height, layer.out.width, layer.groups
    found = np.zeros((data.shape[0], groups, layer.out.channels // groups, height, width))
    split = weights.reshape(groups, -1, *weights.shape[1:])
    for row in range(layer.kernel[0]):
        for column in range(layer.kernel[1]):
            first, second = row * reach, column * spread
            seen = padded[:, :, first : first + down * height : down, second : second + across * width : across]
            seen = seen[:, :, :height, :width].reshape(data.shape[0], groups, -1, height, width)
            found += np.einsum("ngchw,goc->ngohw", seen, split[..., row, column])
    return found.reshape(data.shape[0], -1, height, width)


def pooled(layer: Pool, data: np.ndarray) -> np.ndarray:
    """Return a pooling of numbers."""
    (top, left, bottom, right), (down, across) = layer.padding, layer.strides
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(data.astype(np.float64), pads, constant_values=-np.inf if layer.reduce == "max" else np.nan)
    rows, columns = down * (layer.out.height - 1) + 1, across * (layer.out.width - 1) + 1
    taps = [
        padded[:, :, row : row + rows : down, column : column + columns : across]
        for row in range(layer.kernel[0])
        for column in range(layer.kernel[1])
    ]
    if layer.reduce == "max":
        return np.max(taps, axis=0)
    return np.nansum(taps, axis=0) / len(taps) if layer.counts_padding else np.nanmean(taps, axis=0)


def finished(layer: ImageLayer, values: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Do a layer's steps to numbers, and round them if the result is bytes."""
    needed, others = iter(inputs.grids), iter(inputs.others)
    for op in layer.epilogue:
        if op.kind == "add":
            values = values + numbers(next(others), next(needed))
        elif op.kind == "mul":
            values = values * numbers(next(others), next(needed))
        elif op.kind == "quantize":
            grid = next(needed)
            values = numbers(rounded(values, grid, byte(layer)), grid)
        else:
            values = applied(values, [op], [])
    return values if layer.out.dtype == "float32" else rounded(values, next(needed), layer.out.dtype)


def expected(layer: ImageLayer, inputs: Inputs) -> np.ndarray:
    """Return a layer's result, NCHW."""
    if isinstance(layer, Pool) and layer.reduce == "max":
        return pooled(layer, inputs.data)
    values = numbers(inputs.data, inputs.data_grid)
    if isinstance(layer, Pool):
        values = pooled(layer, values)
    if isinstance(layer, Conv):
        unit = (inputs.weight_scales * inputs.data_grid.scale)[:, None, None]
        sums = convolved(layer, inputs.data.astype(np.float64) - inputs.data_grid.zero, inputs.weights)
        values = (sums + inputs.bias[:, None, None]) * unit
    return finished(layer, values, inputs)


def arguments(template: ModuleType, layer: Any, machine: Machine, config: Any, inputs: Inputs) -> list[np.ndarray]:
    """Return the arguments of a layer's kernel but the last."""
    found = [blocked(inputs.data, layer.data)]
    if isinstance(layer, Conv):
        low, raised = grids.to_int8(inputs.weights)
        found.append(template.pack(layer, machine, config, inputs.weights if layer.is_depthwise else low))
        found.append(grids.sums(layer, inputs.data_grid, inputs.weights, inputs.bias))
        found.append(grids.scales(layer, inputs.data_grid, inputs.weight_scales, inputs.grids))
        found += [grids.offsets(layer, raised)] if layer.offset else []
    if grids.parameter_count(layer):
        found.append(grids.parameters(layer, inputs.data_grid, inputs.grids, grids.fraction(inputs.bias)))
    placed = [op.other for op in layer.epilogue if op.other]
    return [*found, *(blocked(other, place) for other, place in zip(inputs.others, placed, strict=True))]


def check(template: ModuleType, layer: Any, machine: Machine, config: Any = None) -> None:
    """Compare a layer's kernel with the reference; nothing outside its part may change.

    float32 rounds otherwise than float64 now and then: one byte of a thousand may be the next one.
    """
    assert template.covers(layer)
    config = template.configs(layer, machine)[0][0] if config is None else config
    inputs = inputs_of(layer)
    given = arguments(template, layer, machine, config, inputs)
    before = np.full(layer.out.shape, 77, layer.out.dtype)
    buffer = run(template.kernel(layer, machine, config), given, before)
    place = layer.out
    others = [block for block in range(buffer.shape[1]) if not place.first <= block < place.first + place.blocks]
    assert (buffer[:, others] == 77).all()
    close(unblocked(buffer, place), expected(layer, inputs))


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare results: numbers nearly equal, bytes equal but for one of a thousand, and that by one."""
    assert found.shape == wanted.shape
    if found.dtype == np.float32:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        return
    apart = np.abs(found.astype(int) - wanted.astype(int))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= max(1, apart.size // 1000)
    assert len(np.unique(wanted)) > 1 or wanted.size == 1, "a constant shows nothing"
