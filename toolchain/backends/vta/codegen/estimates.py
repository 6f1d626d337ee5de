"""An estimate of a tiling's cycles, to put the likely fastest first; the simulator has the last word.

It follows the simulator's model of the published design: see `runtime/vta/cycles.h`.
"""

from __future__ import annotations

from math import prod

from toolchain.backends.vta.codegen.operators import IDENTITY_SHIFT, bounds, shifts
from toolchain.backends.vta.codegen.tilings import BLOCK, Tiling, window_rows
from toolchain.backends.vta.isa.instructions import Memory

_BUS_BYTES = 8  # per cycle
_TRANSFER_CYCLES = 32
_ROW_CYCLES = 8
_GEMM_CYCLES = 80  # of an instruction beyond its steps: its start, and refills of the pipeline
_OTHER_CYCLES = 40
_ALU_CYCLES = 2  # per element


def cycles(tiling: Tiling) -> float:
    """Return the likely cycles: those of computing, and of transfers where they do not overlap with it."""
    windows, weights = tiling.loads()
    rounds, held = tiling.pixels * tiling.channels, tiling.held
    window = _window(tiling) + _residual(tiling) * rounds / windows
    weight = _transfer(1, tiling.choice.tile_co, tiling.weights * BLOCK * BLOCK)
    store = _transfer(1, tiling.choice.tile_co, tiling.out * BLOCK)
    # Loads are in order: what waits for the only slot of its memory holds up those behind it.
    stops = max(windows if held[Memory.INP] == 1 else 0, weights if held[Memory.WGT] == 1 else 0)
    alone = min(stops, windows) * window + min(stops, weights) * weight
    alone += rounds * store if held[Memory.ACC] == 1 else 0
    bus = windows * window + weights * weight + rounds * store
    return max(rounds * _compute(tiling) + alone, bus) + window + weight


def _window(tiling: Tiling) -> float:
    choice = tiling.choice
    rows = choice.tile_b * choice.tile_ci * window_rows(tiling.layer, choice.tile_h)
    return _transfer(choice.tile_b * choice.tile_ci, rows, tiling.window * BLOCK)


def _residual(tiling: Tiling) -> float:
    return _transfer(1, tiling.choice.tile_co, tiling.out * BLOCK) if tiling.layer.residual_shift is not None else 0


def _transfer(instructions: int, rows: int, size: int) -> float:
    return instructions * _TRANSFER_CYCLES + rows * _ROW_CYCLES + size / _BUS_BYTES


def _compute(tiling: Tiling) -> float:
    """Return the cycles of one tile of y."""
    layer = tiling.layer
    gemms = 1 + prod(layer.kernel) * layer.in_channels // BLOCK
    alus = len(shifts(layer)) + sum(bounds(layer)) + layer.bias
    if layer.residual_shift is not None:
        gemms += 1
        alus += layer.residual_shift > IDENTITY_SHIFT
    overhead = tiling.parts * _GEMM_CYCLES + (1 + alus) * _OTHER_CYCLES
    return tiling.out * (gemms + _ALU_CYCLES * alus) + overhead
