"""VTA's kernels: the ways to cut a layer into tiles, the instructions of each, and kernels as functions of TVM."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tvm import tirx

from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.lowering import lower
from toolchain.backends.vta.codegen.operators import IDENTITY_SHIFT, bounds, schedule_kernel, shifts
from toolchain.backends.vta.codegen.tilings import Choice, Tiling, divides, tilings, window_rows
from toolchain.backends.vta.device.devices import Device, Profile
from toolchain.backends.vta.device.native import verify
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Memory
from toolchain.backends.vta.isa.stream import Buffer, Stream
from toolchain.errors import BuildError, VerificationError

__all__ = ["RUN", "Choice", "buffers", "candidates", "fits", "kernel", "stream", "stream_of"]

RUN = "edge_toolchain.vta.run"
"""The function of the program on the board.

Its arguments are a device, a stream in Base64, maybe bits that say which tensors may stay in its memory, and tensors.
"""

_OUR_FAULT = "please report this; run everything on the CPU with `--without vta`"
_MOST_STREAMS = 512  # of at most about 100 KiB: a tuning run asks for each of its candidates several times

_MOST_CANDIDATES = 48


def candidates(layer: Conv2d, config: VtaConfig = DEFAULT, profile: Profile = Profile.HLS_PYNQ) -> list[Choice]:
    """Return tilings that fit in SRAM, the likely fastest by a profile first; none if VTA cannot run the layer."""
    if not (layer.fills(config) and layer.reads_input):
        return []
    # An estimate orders them, as it would take too long to simulate all.
    fitting = [tiling for tiling in tilings(layer, config) if tiling.fits]
    return [
        tiling.choice
        for tiling in sorted(fitting, key=lambda tiling: estimated_cycles(tiling, profile))[:_MOST_CANDIDATES]
    ]


def fits(layer: Conv2d, choice: Choice, config: VtaConfig = DEFAULT) -> bool:
    """Return whether the tiles divide the layer, and the machine's SRAM holds them."""
    if not (layer.fills(config) and layer.reads_input and divides(layer, choice, config)):
        return False
    return Tiling(layer, choice, config).fits


def stream(
    layer: Conv2d, choice: Choice, config: VtaConfig = DEFAULT, revision: Revision = Revision.V2020_12
) -> Stream:
    """Return the instructions of a layer's kernel.

    Raises:
        BuildError: The tiles do not divide the layer or do not fit, or the layer was packed for another array.
    """
    if not layer.fills(config):
        array = f"{config.batch} by {config.block}"
        raise BuildError(f"the layer's channels do not fill the blocks of an array of {array}", details=str(layer))
    if not layer.reads_input:
        raise BuildError("the layer reads only padding", details=str(layer))
    if not divides(layer, choice, config):
        raise BuildError("the tiles do not divide the layer", details=f"{choice} of {layer}")
    module = schedule_kernel(layer, choice, config).mod
    return lower(module, buffers(layer, config), choice.slots(), config, revision)


def buffers(layer: Conv2d, config: VtaConfig = DEFAULT) -> tuple[Buffer, ...]:
    """Return the arguments of a layer's kernel."""
    memories = [Memory.INP, Memory.WGT]
    memories += [Memory.ACC] * (layer.bias + layer.channel_shifts)
    memories += [Memory.INP, Memory.WGT] if layer.residual_shift is not None else []
    memories += [Memory.INP] * layer.is_filled
    return tuple(
        Buffer(memory, memory is Memory.OUT, prod(shape[:-2]))  # the last two axes are those of an element
        for memory, (shape, _) in zip([*memories, Memory.OUT], layer.arguments(config), strict=True)
    )


@lru_cache(maxsize=_MOST_STREAMS)
def stream_of(layer: Conv2d, choice: Choice, device: Device) -> Stream:
    """Return the instructions of a layer.

    Raises:
        BuildError: It cannot be computed in that way.
    """
    return stream(layer, choice, device.config, device.revision)


def kernel(layer: Conv2d, choice: Choice, device: Device, resident: int = 0) -> tirx.PrimFunc:
    """Return a layer as a function.

    Args:
        choice: How it is cut into tiles.
        device: The accelerator.
        resident: A bit for each of its tensors that may stay in the array's memory.

    Raises:
        BuildError: It cannot be computed in that way.
    """
    encoded = stream_of(layer, choice, device).encoded()
    # A fault found here would otherwise be found by the board.
    try:
        verify(encoded)
    except VerificationError as fault:
        raise BuildError(
            "a compiled stream is not valid for a board",
            details=f"{fault.message}\n{layer.to_json()}",
            hint=_OUR_FAULT,
        ) from fault
    # Strings of TVM's calls are text, so the bytes are encoded.
    text = base64.b64encode(encoded).decode()
    tensors = [
        tirx.decl_buffer(shape, dtype, name=f"b{number}")
        for number, (shape, dtype) in enumerate(layer.arguments(device.config))
    ]
    residency = [tirx.const(resident, "int64")] if resident else []
    call = tirx.call_packed(RUN, device.name, text, *residency, *tensors)
    function = tirx.PrimFunc(tensors, tirx.Evaluate(call))
    return function.with_attrs({"s_tir": True, "tirx.noalias": True})


# --- estimates -------------------------------------------------------------------------------------------------------

# They put the likely fastest tiling first; the simulator has the last word, whose model of the published design they
# follow: see `runtime/vta/cycles.h`.

_TRANSFER_CYCLES = 32
_GEMM_CYCLES = 80  # of an instruction beyond its steps: its start, and refills of the pipeline
_OTHER_CYCLES = 40
_ALU_CYCLES = 2  # per element


@dataclass(frozen=True)
class _Transfers:
    """What data takes on its way: the bytes of one cycle, and the cycles of a row."""

    bytes: float
    row: float

    def cycles(self, instructions: int, rows: int, size: int) -> float:
        return instructions * _TRANSFER_CYCLES + rows * self.row + size / self.bytes


_PLAIN = _Transfers(8, 8)
_TRANSFERS = {Profile.IDEAL: _PLAIN, Profile.HLS_PYNQ: _PLAIN, Profile.PYNQ_Z1: _Transfers(4, 64)}


def estimated_cycles(tiling: Tiling, profile: Profile = Profile.HLS_PYNQ) -> float:
    """Return the likely cycles: those of computing, and of transfers where they do not overlap with it.

    Args:
        tiling: How a layer is cut.
        profile: The model of latencies.
    """
    transfers, choice = _TRANSFERS[profile], tiling.choice
    windows, weights = tiling.loads()
    rounds, slots = tiling.pixels * tiling.channels, tiling.slots_used
    # In DRAM, whole rows of a picture follow each other, so a tile of full width is one row for each block.
    pieces = 1 if choice.tile_w == tiling.layer.out_width else choice.tile_h
    rows = choice.tile_b * choice.tile_co * pieces if transfers.row > _PLAIN.row else choice.tile_co
    store = transfers.cycles(1, rows, tiling.out * tiling.config.element_bytes(Memory.OUT))
    residual = store if tiling.layer.residual_shift is not None else 0
    window = _window(tiling, transfers) + residual * rounds / windows
    size = tiling.weights * tiling.config.element_bytes(Memory.WGT)
    weight = transfers.cycles(1, choice.tile_co, size)
    # Loads are in order: what waits for the only slot of its memory holds up those behind it.
    stops = max(windows if slots[Memory.INP] == 1 else 0, weights if slots[Memory.WGT] == 1 else 0)
    exposed = min(stops, windows) * window + min(stops, weights) * weight
    exposed += rounds * store if slots[Memory.ACC] == 1 else 0
    # All transfers share one bus: no kernel is faster than it.
    bus = windows * window + weights * weight + rounds * store
    return max(rounds * _compute(tiling) + _vectors(tiling, transfers, window) + exposed, bus) + window + weight


def _vectors(tiling: Tiling, transfers: _Transfers, window: float) -> float:
    """Return the cycles of loading biases and shifts, which the array waits for, as they do for the bus."""
    layer, rounds = tiling.layer, tiling.pixels * tiling.channels
    loads = (layer.bias + layer.channel_shifts) * (tiling.channels if tiling.weights_first else rounds)
    # With one tile of channels, its vectors stay.
    if tiling.channels == 1:
        loads = layer.bias + layer.channel_shifts
    return loads * (
        transfers.cycles(1, 1, tiling.choice.tile_co * tiling.config.element_bytes(Memory.ACC)) + window / 2
    )


def _window(tiling: Tiling, transfers: _Transfers) -> float:
    instructions = tiling.choice.tile_b * tiling.blocks
    rows = instructions * window_rows(tiling.layer, tiling.rows)
    layer = tiling.layer
    by_row = layer.is_filled and any(layer.padding[1::2])  # between padding, each row is an instruction
    size = tiling.window * tiling.config.element_bytes(Memory.INP)
    return transfers.cycles(rows if by_row else instructions, rows, size)


def _compute(tiling: Tiling) -> float:
    """Return the cycles of one tile of y."""
    layer, config = tiling.layer, tiling.config
    gemms = 1 + prod(layer.kernel) * layer.summed_channels(config) // config.block
    before, behind = int(layer.bias), len(shifts(layer)) + sum(bounds(layer, config)) + layer.channel_shifts
    if layer.residual_shift is not None:
        gemms += 1
        before += layer.residual_shift > IDENTITY_SHIFT
    maxima = prod(layer.pool.window) if layer.pool else 0
    overhead = tiling.reductions * _GEMM_CYCLES + (1 + before + maxima + behind) * _OTHER_CYCLES
    of_sums = tiling.sums * (gemms + _ALU_CYCLES * before)
    return of_sums + tiling.out * (bool(maxima) + _ALU_CYCLES * (maxima + behind)) + overhead
