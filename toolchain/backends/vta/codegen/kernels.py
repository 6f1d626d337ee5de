"""VTA's kernels: the ways to cut a layer into tiles, the instructions of each, and kernels as functions of TVM."""

from __future__ import annotations

import base64
from functools import lru_cache
from math import prod

from tvm import tirx

from toolchain.backends.vta.codegen.estimates import cycles
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.lowering import lower
from toolchain.backends.vta.codegen.schedules import schedule_kernel
from toolchain.backends.vta.codegen.tilings import Choice, Tiling, divides, tilings
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
    return [tiling.choice for tiling in sorted(fitting, key=lambda tiling: cycles(tiling, profile))[:_MOST_CANDIDATES]]


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
        layer: The layer.
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
