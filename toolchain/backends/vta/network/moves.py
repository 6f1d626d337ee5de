"""What is done to bytes in blocks by the CPU: maxima of windows, and images put together.

Where all are on one grid, of a scale and a zero point, maxima and what is put together are the same on bytes as on the
numbers that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax

from toolchain.backends.graph.values import Operation, Value, four, pair
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.network.chains import Grid, UnfitError, grid, is_dequantize, is_quantize
from toolchain.backends.vta.network.packing import packed_shape

_POOL, _JOIN = "nn.max_pool2d", "concat"
_RANK = 4
_CHANNELS = 1  # axis

Read = Callable[[Value], Any]
"""Returns the variable that holds a tensor of bytes in blocks."""


@dataclass(frozen=True, eq=False)
class Move:
    """Bytes that are made of other bytes.

    Attributes:
        out: The result, int8.
        source: The numbers that it is made of.
    """

    out: Value
    source: Value


def move(operation: Operation, block: int) -> Move | None:
    """Return what makes bytes of other bytes; None if it is no such thing.

    Args:
        operation: Any.
        block: Channels of a block.
    """
    if not is_quantize(operation):
        return None
    source = operation.inputs[0]
    wanted = _grid(operation)
    if wanted is None or source.maker is None or source.maker.name not in (_POOL, _JOIN):
        return None
    return Move(operation.out, source) if _of_bytes(source, wanted, block) else None


def _grid(operation: Operation) -> Grid | None:
    try:
        return grid(operation, "it")
    except UnfitError:
        return None


def _of_bytes(value: Value, wanted: Grid, block: int) -> bool:
    """Whether numbers come of bytes on some grid, by nothing but what is known here."""
    maker = value.maker
    if maker is None or len(value.shape or ()) != _RANK:
        return False
    if is_dequantize(maker):
        return maker.inputs[0].variable is not None and _grid(maker) == wanted
    if maker.name == _JOIN and _along_channels(maker, block):
        return all(_of_bytes(one, wanted, block) for one in maker.inputs)
    return maker.name == _POOL and _plain(maker) and _of_bytes(maker.inputs[0], wanted, block)


def _along_channels(join: Operation, block: int) -> bool:
    whole = all((one.shape or (0, 1))[_CHANNELS] % block == 0 for one in join.inputs)
    return whole and int(join.attributes.axis) in (_CHANNELS, _CHANNELS - _RANK)


def _plain(pool: Operation) -> bool:
    how = pool.attributes
    return (str(how.layout), str(how.out_layout)) == ("NCHW", "NCHW")


def written(value: Value, config: VtaConfig, read: Read, bind: Callable[[Any, str, tuple[int, ...], Any], Any]) -> Any:
    """Write what makes bytes of other bytes; returns the variable that holds them in blocks.

    Args:
        value: The numbers that they stand for.
        config: The machine.
        read: Returns the bytes that it comes of.
        bind: Gives an expression a variable like another one: that, a suffix for its name, the shape, and it.
    """
    maker = value.maker
    if maker is None or is_dequantize(maker):
        return read(maker.inputs[0]) if maker is not None else None
    parts = [written(one, config, read, bind) for one in maker.inputs]
    shape = packed_shape(value.shape or (), config)
    if maker.name == _JOIN:
        return bind(value.variable, "_packed", shape, relax.op.concat(parts, axis=_CHANNELS))
    return bind(value.variable, "_packed", shape, _pooled(maker, parts[0], shape, config))


def _pooled(pool: Operation, data: Any, shape: tuple[int, ...], config: VtaConfig) -> Any:
    """Return the maxima of images in blocks: each block is an image of its own, its rows' channels last."""
    batch, blocks, height, width, rows, block = packed_shape(pool.inputs[0].shape or (), config)
    images = relax.op.reshape(data, (batch * blocks, height, width, rows * block))
    how = pool.attributes
    made = relax.op.nn.max_pool2d(
        images,
        pool_size=pair(how.pool_size),
        strides=pair(how.strides),
        dilation=pair(how.dilation),
        padding=four(how.padding),
        ceil_mode=bool(how.ceil_mode),
        layout="NHWC",
        out_layout="NHWC",
    )
    return relax.op.reshape(made, shape)
