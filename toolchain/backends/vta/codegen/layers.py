"""A convolution of int8 tensors on VTA, with the operations that can follow before its sums leave the chip.

    y = clip((sum of x * w + bias + (residual << residual_shift)) >> (shift + channel shift), low, high)

A right shift rounds down; to round to nearest, half a step is added to the bias. Of the sums with their bias,
maxima of windows may be taken: shifts and bounds keep the order of numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig

_KIND = "vta.conv2d"
_MOST_SHIFT = 15  # of one ALU instruction
# Left out of a layer's name, so that records from before these fields stay valid.
_USUAL = {"alone": False, "channel_shifts": False, "pool": None, "pad": 0}
FILLING = 64
"""Elements of the tensor that other padding than zeros is loaded from: those of a row of a usual image."""


@dataclass(frozen=True)
class Pool:
    """The maxima that are taken of a layer's sums.

    Attributes:
        window: Rows and columns of a window.
        stride: Rows and columns between two windows.
        outside: Rows and columns at each edge that are padding of the pool, and in no maximum: top, left, bottom,
            right. The layer's padding is larger by as much, so that sums exist there.
    """

    window: tuple[int, int]
    stride: tuple[int, int]
    outside: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Conv2d:
    """One convolution on packed tensors.

    Layouts, for an array of R rows (its configuration's batch) and B columns (its block): x is (N / R, in_blocks, H, W,
    R, B) int8, w is (out_blocks, in_blocks, KH, KW, B out, B in) int8, bias and channel shifts are (out_blocks, R, B)
    int32 with equal rows, a residual is like y, its weights are (B out, B in) int8: a multiple of the identity,
    `1 << min(residual_shift, 6)`, and the rest of its shift is an ALU operation. y is (N / R, out_blocks, OH, OW, R, B)
    int8. Where N is no multiple of R, the last rows have no image. A dense layer is a convolution of one pixel. Where
    blocks stand alone, as those of a convolution of each channel by itself do, w is (out_blocks, 1, KH, KW, B out, B
    in). Padding with another byte than 0 is loaded from a tensor of that byte, (64, R, B) int8.

    Attributes:
        batch: N.
        height: H, rows of x without padding.
        width: W, columns of x without padding.
        in_channels: Channels of x, a multiple of the block.
        out_channels: Channels of y, a multiple of the block.
        kernel: Rows and columns of the window.
        stride: Rows and columns between two windows.
        padding: Rows and columns around x: top, left, bottom, right.
        shift: Right shift of the sums, 0 to 31.
        low: Lower bound of y, -128 to 127.
        high: Upper bound of y.
        bias: Whether there is a bias.
        residual_shift: Left shift of the residual, 0 to 15; None if there is no residual.
        channel_shifts: Whether each channel of y is shifted by 0 to 15 bits more, which a tensor says.
        alone: Whether each block of y is computed from the block of x in the same place, and from no other.
        pool: The maxima of sums that y is made of; None if it is made of each sum. No residual is added then.
        pad: The byte that padding is made of.
    """

    batch: int
    height: int
    width: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    shift: int = 0
    low: int = -128
    high: int = 127
    bias: bool = True
    residual_shift: int | None = None
    alone: bool = False
    channel_shifts: bool = False
    pool: Pool | None = None
    pad: int = 0

    @property
    def is_filled(self) -> bool:
        """Whether padding comes from a tensor: a LOAD makes zeros by itself, and no other byte."""
        return self.pad != 0 and any(self.padding)

    @property
    def out_height(self) -> int:
        """Rows of y."""
        return self._maxima(self._windows()[0], 0)

    @property
    def out_width(self) -> int:
        """Columns of y."""
        return self._maxima(self._windows()[1], 1)

    @property
    def sum_height(self) -> int:
        """Rows of the sums."""
        return self.sums_of(self.out_height, 0)

    @property
    def sum_width(self) -> int:
        """Columns of the sums."""
        return self.sums_of(self.out_width, 1)

    def sums_of(self, extent: int, axis: int) -> int:
        """Return the rows (axis 0) or columns (axis 1) of sums that so many neighbouring ones of y are made of."""
        # Windows overlap where the stride is smaller than the window.
        return extent if self.pool is None else (extent - 1) * self.pool.stride[axis] + self.pool.window[axis]

    def _windows(self) -> tuple[int, int]:
        """Return the rows and columns of windows on x."""
        top, left, bottom, right = self.padding
        rows = (self.height + top + bottom - self.kernel[0]) // self.stride[0] + 1
        return rows, (self.width + left + right - self.kernel[1]) // self.stride[1] + 1

    def _maxima(self, sums: int, axis: int) -> int:
        return sums if self.pool is None else (sums - self.pool.window[axis]) // self.pool.stride[axis] + 1

    @property
    def reads_input(self) -> bool:
        """Whether any window reaches x; where all lie in the padding, y is a constant, and TensorIR reads nothing."""
        axes = zip(
            (self.height, self.width),
            (self.sum_height, self.sum_width),
            self.kernel,
            self.stride,
            self.padding[:2],
            strict=True,
        )
        return all(
            any(-window < out * step - before < size for out in range(count))
            for size, count, window, step, before in axes
        )

    def summed_channels(self, config: VtaConfig = DEFAULT) -> int:
        """Return the channels of x that are added up in one of y."""
        # The array multiplies whole blocks, also where only one channel of each counts.
        return config.block if self.alone else self.in_channels

    def macs(self, config: VtaConfig = DEFAULT) -> int:
        """Return the multiply-adds of one call, those with padding and with zeros of a block's weights included.

        What an array computes in rows that have no image is of no use, and is not counted.
        """
        # Padding and the zeros of a block's weights take as long as other numbers, so they count.
        window = self.kernel[0] * self.kernel[1] * self.summed_channels(config)
        return self.batch * self.sum_height * self.sum_width * self.out_channels * window

    def arguments(self, config: VtaConfig = DEFAULT) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Return shape and type of each tensor: x, w, bias, channel shifts, residual and its weights, filling, y."""
        rows, block = config.batch, config.block
        batch, blocks_in, blocks_out = self.batches(config), self.in_channels // block, self.out_channels // block
        y = ((batch, blocks_out, self.out_height, self.out_width, rows, block), "int8")
        tensors: list[tuple[tuple[int, ...], str]] = [
            ((batch, blocks_in, self.height, self.width, rows, block), "int8"),
            ((blocks_out, 1 if self.alone else blocks_in, *self.kernel, block, block), "int8"),
        ]
        if self.bias:
            tensors.append(((blocks_out, rows, block), "int32"))
        if self.channel_shifts:
            tensors.append(((blocks_out, rows, block), "int32"))
        if self.residual_shift is not None:
            tensors += [y, ((block, block), "int8")]
        if self.is_filled:
            tensors.append(((FILLING, rows, block), "int8"))
        return (*tensors, y)

    def batches(self, config: VtaConfig = DEFAULT) -> int:
        """Return how often images fill the rows of an array, the last time maybe not all of them."""
        return math.ceil(self.batch / config.batch)

    def fills(self, config: VtaConfig) -> bool:
        """Whether channels fill the blocks of an array, as they do where a network was packed for it."""
        return self.in_channels % config.block == self.out_channels % config.block == 0

    def task(self) -> Conv2d:
        """Return the layer as it is tuned: other constants make the same instructions, and a residual few more."""
        return replace(
            self,
            # A shift takes no instruction, one or two; the amount itself makes no difference.
            shift=_MOST_SHIFT + 1 if self.shift > _MOST_SHIFT else min(self.shift, 1),
            low=0 if self.low >= 0 else -128,
            high=127,
            residual_shift=None,
            pad=int(self.is_filled),
        )

    def to_json(self) -> str:
        """Return the layer as one line of JSON, which names it in tuning records."""
        table = {"kind": _KIND, **asdict(self)}
        # Usual values are left out, so that the names of older records stay valid.
        for name, usual in _USUAL.items():
            if table[name] == usual:
                del table[name]
        return json.dumps(table, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Conv2d:
        """Read a layer that `to_json` wrote.

        Raises:
            ValueError: The text is not a layer of VTA.
            TypeError: It has other attributes.
        """
        table: dict[str, Any] = json.loads(text)
        if table.pop("kind", "") != _KIND:
            raise ValueError("this is not a VTA layer")
        pool = table.pop("pool", None)
        return cls(**_tuples(table), pool=Pool(**_tuples(pool)) if pool else None)


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


def is_layer(text: str) -> bool:
    """Whether a layer's JSON is one of VTA's."""
    return f'"kind":"{_KIND}"' in text
