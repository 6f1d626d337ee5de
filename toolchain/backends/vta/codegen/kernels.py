"""VTA's kernels: which ways to cut a layer into tiles fit and are likely fast, and the instructions of each."""

from __future__ import annotations

from math import prod

from toolchain.backends.vta.codegen.estimates import cycles
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.lowering import lowered
from toolchain.backends.vta.codegen.schedules import scheduled
from toolchain.backends.vta.codegen.tilings import Choice, Tiling, divides, tilings
from toolchain.backends.vta.device.profiles import Profile
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Memory
from toolchain.backends.vta.isa.stream import Buffer, Stream
from toolchain.errors import BuildError

__all__ = ["Choice", "buffers", "candidates", "fits", "stream"]

_MOST_CANDIDATES = 48


def candidates(layer: Conv2d, config: VtaConfig = DEFAULT, profile: Profile = Profile.HLS_PYNQ) -> list[Choice]:
    """Return tilings that fit in SRAM, the likely fastest by a profile first; none if VTA cannot run the layer."""
    if not (layer.fills(config) and layer.reads_input):
        return []
    fitting = [tiling for tiling in tilings(layer, config) if tiling.fits]
    return [tiling.choice for tiling in sorted(fitting, key=lambda one: cycles(one, profile))[:_MOST_CANDIDATES]]


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
    module = scheduled(layer, choice, config).mod
    return lowered(module, buffers(layer, config), choice.slots(), config, revision)


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
