"""What VTA computes: a convolution of int8 tensors, with all that can follow it before its sums leave the chip.

    y = clip((sum of x * w + bias + (residual << residual_shift)) >> (shift + channel shift), low, high)

A right shift rounds down. Who wants it to round to nearest adds half a step to the bias.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig

_KIND = "vta.conv2d"
_MOST_SHIFT = 15  # of one ALU instruction


@dataclass(frozen=True)
class Conv2d:
    """One convolution on packed tensors.

    Layouts, for an array of R rows (its configuration's batch) and B columns (its block): x is (N / R, in_blocks, H, W,
    R, B) int8, w is (out_blocks, in_blocks, KH, KW, B out, B in) int8, bias and channel shifts are (out_blocks, R, B)
    int32 with equal rows, a residual is like y, its weights are (B out, B in) int8: a multiple of the identity,
    `1 << min(residual_shift, 6)`, and what is missing of its shift is shifted. y is (N / R, out_blocks, OH, OW, R, B)
    int8. Where N is no multiple of R, the last rows have no image. A dense layer is a convolution of one pixel. Where
    blocks stand alone, as those of a convolution of each channel by itself do, w is (out_blocks, 1, KH, KW, B out, B
    in).

    Attributes:
        batch: N.
        height: H, rows of x without padding.
        width: W, columns of x without padding.
        in_channels: Channels of x, a multiple of the block.
        out_channels: Channels of y, a multiple of the block.
        kernel: Rows and columns of the window.
        stride: Rows and columns between two windows.
        padding: Zeros around x: top, left, bottom, right.
        shift: Right shift of the sums, 0 to 31.
        low: Lower bound of y, -128 to 127.
        high: Upper bound of y.
        bias: Whether there is a bias.
        residual_shift: Left shift of the residual, 0 to 15; None if there is no residual.
        channel_shifts: Whether each channel of y is shifted by 0 to 15 bits more, which a tensor says.
        alone: Whether each block of y is computed from the block of x in the same place, and from no other.
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

    @property
    def out_height(self) -> int:
        """Rows of y."""
        return (self.height + self.padding[0] + self.padding[2] - self.kernel[0]) // self.stride[0] + 1

    @property
    def out_width(self) -> int:
        """Columns of y."""
        return (self.width + self.padding[1] + self.padding[3] - self.kernel[1]) // self.stride[1] + 1

    @property
    def reads_input(self) -> bool:
        """Whether any window reaches x; where all lie in the padding, y is a constant, and TensorIR reads nothing."""
        axes = zip(
            (self.height, self.width),
            (self.out_height, self.out_width),
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
        return config.block if self.alone else self.in_channels

    def macs(self, config: VtaConfig = DEFAULT) -> int:
        """Return the multiply-adds of one call, those with padding and with zeros of a block's weights included.

        What an array computes in rows that have no image is of no use, and is not counted.
        """
        window = self.kernel[0] * self.kernel[1] * self.summed_channels(config)
        return self.batch * self.out_height * self.out_width * self.out_channels * window

    def arguments(self, config: VtaConfig = DEFAULT) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Return shape and type of each tensor: x, w, bias, channel shifts, residual and its weights, and y."""
        rows, block = config.batch, config.block
        batch, blocks_in, blocks_out = self.batches(config), self.in_channels // block, self.out_channels // block
        y = ((batch, blocks_out, self.out_height, self.out_width, rows, block), "int8")
        found: list[tuple[tuple[int, ...], str]] = [
            ((batch, blocks_in, self.height, self.width, rows, block), "int8"),
            ((blocks_out, 1 if self.alone else blocks_in, *self.kernel, block, block), "int8"),
        ]
        if self.bias:
            found.append(((blocks_out, rows, block), "int32"))
        if self.channel_shifts:
            found.append(((blocks_out, rows, block), "int32"))
        if self.residual_shift is not None:
            found += [y, ((block, block), "int8")]
        return (*found, y)

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
            shift=_MOST_SHIFT + 1 if self.shift > _MOST_SHIFT else min(self.shift, 1),
            low=0 if self.low >= 0 else -128,
            high=127,
            residual_shift=None,
        )

    def to_json(self) -> str:
        """Return the layer as one line of JSON, which names it in tuning records."""
        table = {"kind": _KIND, **asdict(self)}
        for name in ("alone", "channel_shifts"):
            if not table[name]:
                del table[name]  # records of before there were such layers stay valid
        return json.dumps(table, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Conv2d:
        """Read a layer that `to_json` wrote.

        Raises:
            ValueError: It is none.
            TypeError: It has other attributes.
        """
        table: dict[str, Any] = json.loads(text)
        if table.pop("kind", "") != _KIND:
            raise ValueError("this is no layer of VTA")
        values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in table.items()}
        return cls(**values)


def is_layer(text: str) -> bool:
    """Whether a layer's JSON is one of VTA's."""
    return f'"kind":"{_KIND}"' in text
