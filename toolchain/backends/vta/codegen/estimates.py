"""An estimate of a tiling's cycles, to put the likely fastest first; the simulator has the last word.

It follows the simulator's model of the published design: see `runtime/vta/cycles.h`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from toolchain.backends.vta.codegen.operators import IDENTITY_SHIFT, bounds, shifts
from toolchain.backends.vta.codegen.tilings import Tiling, window_rows
from toolchain.backends.vta.device.devices import Profile
from toolchain.backends.vta.isa.instructions import Memory

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


def cycles(tiling: Tiling, profile: Profile = Profile.HLS_PYNQ) -> float:
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
