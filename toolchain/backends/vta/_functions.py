"""Kernels as functions of TVM: each hands its stream and its tensors to the program on the board."""

from __future__ import annotations

import base64
from functools import lru_cache

from tvm import tirx

from toolchain.backends.vta import kernels
from toolchain.backends.vta._devices import Device
from toolchain.backends.vta.kernels import Choice
from toolchain.backends.vta.layers import Conv2d
from toolchain.backends.vta.stream import Stream

RUN = "edge_toolchain.vta.run"
"""The function of the program on the board; its arguments are a device, a stream in Base64, and tensors."""

_MOST_STREAMS = 512  # of at most about 100 KiB: a tuning run asks for each of its candidates several times


@lru_cache(maxsize=_MOST_STREAMS)
def stream_of(layer: Conv2d, choice: Choice, device: Device) -> Stream:
    """Return the instructions of a layer.

    Raises:
        BuildError: It cannot be computed in that way.
    """
    return kernels.stream(layer, choice, device.config, device.revision)


def kernel(layer: Conv2d, choice: Choice, device: Device) -> tirx.PrimFunc:
    """Return a layer as a function.

    Raises:
        BuildError: It cannot be computed in that way.
    """
    stream = base64.b64encode(stream_of(layer, choice, device).encoded()).decode()
    buffers = [
        tirx.decl_buffer(shape, dtype, name=f"b{number}")
        for number, (shape, dtype) in enumerate(layer.arguments(device.config))
    ]
    call = tirx.call_packed(RUN, device.name, stream, *buffers)
    function = tirx.PrimFunc(buffers, tirx.Evaluate(call))
    return function.with_attrs({"s_tir": True, "tirx.noalias": True})
