"""How a layer is cut into tiles, what each tile takes in SRAM, and how often it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.nests import DISTANCE
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Memory

MOST_PADDING = 15
"""Of one LOAD, on each side."""

_MOST_SLOTS = 2


@dataclass(frozen=True)
class Choice:
    """The extents of tiles, each of which divides its axis, and how many of them SRAM holds.

    Attributes:
        tile_b: Images, so many times as the array has rows.
        tile_h: Rows of y.
        tile_w: Columns of y.
        tile_ci: Channel blocks of x that are added up before the next are loaded.
        tile_co: Channel blocks of y.
        oc_threads: 2 if the next weights are loaded while some are used, else 1.
        h_threads: 2 if the next pixels are loaded while some are used, else 1.
    """

    tile_b: int = 1
    tile_h: int = 1
    tile_w: int = 1
    tile_ci: int = 1
    tile_co: int = 1
    oc_threads: int = 1
    h_threads: int = 1

    def document(self) -> dict[str, Any]:
        """Return the choice as a tuning record keeps it."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Choice | None:
        """Read a tuning record; None if it is not one of these."""
        names = {field.name for field in fields(cls)}
        # Records are files of others: a wrong type or an unknown field is no error, but no choice either.
        if set(document) != names or not all(type(value) is int and value > 0 for value in document.values()):
            return None
        choice = cls(**document)
        return choice if max(choice.oc_threads, choice.h_threads) <= _MOST_SLOTS else None

    def slots(self) -> dict[Memory, int]:
        """Return how many tiles of one tensor each SRAM may hold."""
        return {
            Memory.INP: self.h_threads,
            Memory.WGT: self.oc_threads,
            Memory.ACC: max(self.h_threads, self.oc_threads),
        }


@dataclass(frozen=True)
class Tiling:
    """A layer cut in one way.

    Attributes:
        layer: The layer.
        choice: The extents of its tiles, which divide it.
        config: The machine.
    """

    layer: Conv2d
    choice: Choice
    config: VtaConfig = DEFAULT

    @cached_property
    def pixels(self) -> int:
        """Tiles along images, rows and columns of y."""
        layer, choice = self.layer, self.choice
        images, rows = layer.batches(self.config) // choice.tile_b, layer.out_height // choice.tile_h
        return images * rows * (layer.out_width // choice.tile_w)

    @cached_property
    def channels(self) -> int:
        """Tiles along the channels of y."""
        return self.layer.out_channels // self.config.block // self.choice.tile_co

    @cached_property
    def reductions(self) -> int:
        """Tiles along the channels of x, which are added up."""
        return self.layer.summed_channels(self.config) // self.config.block // self.choice.tile_ci

    @cached_property
    def windows(self) -> int:
        """Different tiles of x: blocks that stand alone share none."""
        return self.pixels * (self.channels if self.layer.alone else self.reductions)

    @property
    def blocks(self) -> int:
        """Channel blocks of one tile of x."""
        return self.choice.tile_co if self.layer.alone else self.choice.tile_ci

    @property
    def out(self) -> int:
        """Elements of one tile of y."""
        return prod((self.choice.tile_b, self.choice.tile_co, self.choice.tile_h, self.choice.tile_w))

    @property
    def rows(self) -> int:
        """Rows of sums that one tile of y is made of."""
        return self.layer.sums_of(self.choice.tile_h, 0)

    @property
    def columns(self) -> int:
        """Columns of sums that one tile of y is made of."""
        return self.layer.sums_of(self.choice.tile_w, 1)

    @property
    def sums(self) -> int:
        """Elements of the sums that one tile of y is made of."""
        return prod((self.choice.tile_b, self.choice.tile_co, self.rows, self.columns))

    @property
    def window(self) -> int:
        """Elements of one tile of x with its padding."""
        rows, columns = window_rows(self.layer, self.rows), window_columns(self.layer, self.columns)
        return self.choice.tile_b * self.blocks * rows * columns

    @property
    def weights(self) -> int:
        """Elements of one tile of weights."""
        return self.choice.tile_co * self.choice.tile_ci * prod(self.layer.kernel)

    @cached_property
    def slots_used(self) -> dict[Memory, int]:
        """Slots of the window, the weights and the sums: no more than there are different tiles."""
        pixels, channels, reductions = self.pixels, self.channels, self.reductions
        different = {Memory.INP: self.windows, Memory.WGT: channels * reductions, Memory.ACC: pixels * channels}
        return {memory: min(slots, different[memory]) for memory, slots in self.choice.slots().items()}

    @cached_property
    def weights_first(self) -> bool:
        """Whether all pixels meet some weights before the next are loaded, as this moves fewer bytes."""
        return self._bytes(first=True) <= self._bytes(first=False)

    def loads(self, *, first: bool | None = None) -> tuple[int, int]:
        """Return how many tiles of x and of weights are loaded.

        Args:
            first: Whether `weights_first`, which is the default.
        """
        first = self.weights_first if first is None else first
        rounds = self.pixels * self.channels * self.reductions
        windows, weights = self.windows, self.channels * self.reductions
        inp, wgt = self.slots_used[Memory.INP], self.slots_used[Memory.WGT]
        # A tile that is still in its slot from an earlier round is not loaded again.
        window_stays = windows <= inp or (not first and self.reductions <= inp)
        weights_stay = weights <= wgt or (first and self.reductions <= wgt)
        return windows if window_stays else rounds, weights if weights_stay else rounds

    @property
    def fits(self) -> bool:
        """Whether each SRAM is large enough."""
        config = self.config
        # A tile of padding alone is loaded as zeros, each load of which ends with one element more.
        window = self.window + any(self.layer.padding)
        inp, wgt = self.slots_used[Memory.INP] * window, self.slots_used[Memory.WGT] * self.weights
        vectors = self.layer.bias + self.layer.channel_shifts
        # Sums and their maxima lie beside each other.
        results = max(DISTANCE, self.sums) + (max(DISTANCE, self.out) if self.layer.pool else 0)
        acc = self.slots_used[Memory.ACC] * results + vectors * self.choice.tile_co
        if self.layer.residual_shift is not None:
            inp += min(self.choice.h_threads, self.pixels * self.channels) * self.out
            wgt += 1
        if max(self.layer.padding) > MOST_PADDING:
            return False
        return inp <= config.inp_depth and wgt <= config.wgt_depth and acc <= config.acc_depth

    def _bytes(self, *, first: bool) -> int:
        windows, weights = self.loads(first=first)
        window, weight = (self.config.element_bytes(memory) for memory in (Memory.INP, Memory.WGT))
        return windows * self.window * window + weights * self.weights * weight


def window_step(layer: Conv2d) -> int:
    """Return the rows of x from one row of the window to the next: rows that no output needs are not loaded."""
    return layer.stride[0] if layer.kernel[0] == 1 else 1


def window_rows(layer: Conv2d, rows: int) -> int:
    """Return the rows of the window that so many rows of sums need."""
    return rows if layer.kernel[0] == 1 else (rows - 1) * layer.stride[0] + layer.kernel[0]


def window_columns(layer: Conv2d, columns: int) -> int:
    """Return the columns of the window that so many columns of sums need."""
    return (columns - 1) * layer.stride[1] + layer.kernel[1]


def divides(layer: Conv2d, choice: Choice, config: VtaConfig = DEFAULT) -> bool:
    """Whether the tiles divide the layer."""
    extents = (choice.tile_b, choice.tile_h, choice.tile_w, choice.tile_ci, choice.tile_co)
    return not any(size % extent for size, extent in zip(_axes(layer, config), extents, strict=True))


def tilings(layer: Conv2d, config: VtaConfig = DEFAULT) -> Iterator[Tiling]:
    """Yield all tilings, but none with a second slot that would stay empty."""
    divisors = [[extent for extent in range(1, size + 1) if size % extent == 0] for size in _axes(layer, config)]
    for image, row, column, blocks_in, blocks_out in product(*divisors):
        choice = Choice(image, row, column, blocks_in, blocks_out)
        once = Tiling(layer, choice, config)
        windows, weights = once.windows, once.channels * once.reductions
        for oc_threads, h_threads in product(range(1, _MOST_SLOTS + 1), repeat=2):
            # A second slot that stays empty would be a second name for the same program.
            if oc_threads <= weights and h_threads <= windows:
                yield replace(once, choice=replace(choice, oc_threads=oc_threads, h_threads=h_threads))


def _axes(layer: Conv2d, config: VtaConfig) -> tuple[int, ...]:
    blocks_in, blocks_out = layer.summed_channels(config) // config.block, layer.out_channels // config.block
    return layer.batches(config), layer.out_height, layer.out_width, blocks_in, blocks_out
