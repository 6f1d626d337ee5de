"""Kernels as functions of TVM: each hands its stream and its tensors to the program on the board."""

from __future__ import annotations

import base64
from functools import lru_cache

from tvm import tirx

from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import Choice
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.devices import Device
from toolchain.backends.vta.device.verifier import verify
from toolchain.backends.vta.isa.stream import Stream
from toolchain.errors import BuildError, VerificationError

RUN = "edge_toolchain.vta.run"
"""The function of the program on the board.

Its arguments are a device, a stream in Base64, maybe bits that say which tensors may stay in its memory, and tensors.
"""

_OUR_FAULT = "please report this; run everything on the CPU with `--without vta`"
_MOST_STREAMS = 512  # of at most about 100 KiB: a tuning run asks for each of its candidates several times


@lru_cache(maxsize=_MOST_STREAMS)
def stream_of(layer: Conv2d, choice: Choice, device: Device) -> Stream:
    """Return the instructions of a layer.

    Raises:
        BuildError: It cannot be computed in that way.
    """
    return kernels.stream(layer, choice, device.config, device.revision)


def kernel(layer: Conv2d, choice: Choice, device: Device, stays: int = 0) -> tirx.PrimFunc:
    """Return a layer as a function.

    Args:
        layer: The layer.
        choice: How it is cut into tiles.
        device: The accelerator.
        stays: A bit for each of its tensors that may stay in the array's memory.

    Raises:
        BuildError: It cannot be computed in that way.
    """
    encoded = stream_of(layer, choice, device).encoded()
    _check(encoded, layer)
    stream = base64.b64encode(encoded).decode()
    buffers = [
        tirx.decl_buffer(shape, dtype, name=f"b{number}")
        for number, (shape, dtype) in enumerate(layer.arguments(device.config))
    ]
    said = [tirx.const(stays, "int64")] if stays else []
    call = tirx.call_packed(RUN, device.name, stream, *said, *buffers)
    function = tirx.PrimFunc(buffers, tirx.Evaluate(call))
    return function.with_attrs({"s_tir": True, "tirx.noalias": True})


def _check(stream: bytes, layer: Conv2d) -> None:
    """Find out here what a board would refuse."""
    try:
        verify(stream)
    except VerificationError as fault:
        raise BuildError(
            "a compiled stream is not valid for a board",
            details=f"{fault.message}\n{layer.to_json()}",
            hint=_OUR_FAULT,
        ) from fault
