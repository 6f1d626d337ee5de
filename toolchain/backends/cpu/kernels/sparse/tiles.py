"""What convolutions and fully connected layers share: tiles of gathered pixels, and their products with the lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.sparse.weights import Packing
from toolchain.backends.cpu.machine import Machine

_MOST_PIXELS = 16  # of a tile: their sums fit on the stack
_MOST_PARTS = 16
_BY_ELEMENT = 4  # lanes up to which a multiply-add with one element of a vector costs nothing more
_COLD = 4  # times longer than a product takes to fetch a vector that no cache holds
_LATENCY = 8  # times as long as it takes to begin a multiply-add
_FLOAT = 4

# What it costs to begin and end a tile, each of its sums, a vector and its turn beside the products, and to gather one.
_TILE, _SUM, _VECTOR, _TURN, _GATHERED = 30.0, 3.0, 1.0, 3.0, 8.0
_L2_RATE, _RATE = 18.0, 6.0  # bytes that the second cache gives, and what lies behind it

Expr = Any


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        pixels: Pixels, or rows, of a tile.
        together: Vectors that are taken at a time, with sums of their own.
        bands: Bands of tiles of an image.
        shares: Shares of the blocks of outputs.
    """

    pixels: int
    together: int
    bands: int
    shares: int


@dataclass(frozen=True)
class Work:
    """What is to be done, whatever the layer is.

    Attributes:
        images: Images, each with tiles of its own.
        pixels: Pixels of an image.
        inputs: Inputs of all taps: the length of the gathered data.
        packing: The packed weights.
        gathers: Whether the data must be gathered: that of a single pixel may lie together already.
    """

    images: int
    pixels: int
    inputs: int
    packing: Packing
    gathers: bool

    def operations(self, machine: Machine) -> int:
        """Return how long it takes, in vector products; see `dense` for a single row."""
        is_near = _FLOAT * self.packing.size <= machine.l2_bytes // 2
        return self.packing.vectors * self.images * max(self.pixels, 1 if is_near else _COLD)

    def stride(self, config: Config) -> int:
        """Return how far apart the inputs lie in the gathered data."""
        lanes = self.packing.lanes
        return -(-config.pixels // lanes) * lanes if self.gathers else 1

    def configs(self, machine: Machine) -> list[tuple[Config, float]]:
        """List the candidates with their estimated costs, the cheapest first."""
        candidates = []
        for pixels in range(1, min(self.pixels, machine.registers - 2, _MOST_PIXELS) + 1):
            tiles = -(-self.pixels // pixels)
            together = max(1, min(_LATENCY // pixels, (machine.registers - 2) // (2 * pixels)))
            cores = emit.worker_count(self.operations(machine), machine.cores)
            bands = emit.count_shares(self.images, min(_MOST_PARTS, tiles), cores)
            shares = emit.count_shares(self.images * bands, min(_MOST_PARTS, self.packing.blocks), cores)
            config = Config(pixels, together, bands, shares)
            # The gathered data stays in the second cache, beside the vectors that pass by.
            if 4 * _FLOAT * self.inputs * self.stride(config) <= 3 * machine.l2_bytes:
                candidates.append((config, self._estimate(config, machine, cores)))
        return sorted(candidates, key=lambda candidate: candidate[1])

    def _estimate(self, config: Config, machine: Machine, cores: int) -> float:
        lanes, blocks = self.packing.lanes, self.packing.blocks
        loads = 1 / lanes if lanes <= _BY_ELEMENT else 1.0
        is_near = _FLOAT * self.packing.size // config.shares <= machine.l2_bytes // 2
        # Templates for a single row of dense weights do not count how long these take to come either.
        coming = _FLOAT * (lanes + 1) / (_L2_RATE if is_near else _RATE) if self.gathers else 0.0
        products = max(config.pixels * (1.0 + loads) if machine.loads_apart else config.pixels, coming)
        of_vector = max(products, _LATENCY / config.together) + _VECTOR + _TURN / config.together
        tile = self.packing.vectors * of_vector + blocks * (_TILE + _SUM * config.pixels)
        if self.gathers:
            tile += config.shares * _GATHERED * self.inputs * self.stride(config) / lanes
        parts = self.images * config.bands * config.shares
        # A band has whole tiles, and the busiest core does this many parts.
        tiles = -(-self.pixels // config.pixels)
        return -(-tiles // config.bands) * tile / config.shares * -(-parts // cores)


class TileWriter(ABC):
    """Writes a kernel.

    Args:
        machine: The processor.
        work: What is to be done.
        config: How it is cut.
        data: Flat buffer of the data.
        weights: Flat buffer of the packed weights.
    """

    def __init__(self, machine: Machine, work: Work, config: Config, data: Any, weights: Any) -> None:
        self._machine, self._work, self._config = machine, work, config
        self._data, self._weights, self._lanes = data, weights, work.packing.lanes
        self._stride = work.stride(config)

    @abstractmethod
    def gather(self, gathered: Any, image: Expr, first: Expr, pixels: int) -> None:
        """Write the code that gathers what the pixels of a tile multiply, as [inputs, `_stride`]."""

    @abstractmethod
    def finish(self, totals: Sequence[Expr], image: Expr, block: Expr, first: Expr) -> None:
        """Write the code that stores the sums of a tile, of one block of outputs."""

    def write(self) -> None:
        """Write all statements."""
        work, (bands, shares) = self._work, (self._config.bands, self._config.shares)
        blocks = work.packing.blocks
        with emit.shared(work.images * bands * shares, work.operations(self._machine)) as part:
            image = T.Bind(part // (bands * shares))
            band, share = T.Bind(part // shares % bands), T.Bind(part % shares)
            begin, end = (T.Bind((share + more) * blocks // shares) for more in (0, 1))
            gathered = self._data
            if work.gathers:
                gathered = emit.flat(T.alloc_buffer((work.inputs * self._stride,), "float32"))
            for first, pixels in self._tiles(band):
                if work.gathers:
                    self.gather(gathered, image, first, pixels)
                with T.serial(begin, end) as block:
                    source = 0 if work.gathers else T.Bind(image * work.inputs)
                    self.finish(self._totals(gathered, source, block, pixels), image, block, first)

    def _tiles(self, band: Expr) -> Iterator[tuple[Expr, int]]:
        """Open the loops over the tiles of a band, and yield first pixel and number of pixels of each."""
        size, bands = self._config.pixels, self._config.bands
        full, rest = divmod(self._work.pixels, size)
        begin, end = (T.Bind((band + more) * full // bands) for more in (0, 1))
        with T.serial(begin, end) as tile:
            yield T.Bind(tile * size), size
        if rest:
            with T.If(band == bands - 1), T.Then():
                yield full * size, rest

    def _totals(self, gathered: Any, source: Expr, block: Expr, pixels: int) -> list[Expr]:
        """Write the products of a tile with a list of vectors; return its sums."""
        together = self._config.together
        sums = emit.Registers(pixels * together, self._lanes)
        for number in range(pixels * together):
            sums[number] = emit.splat(0.0, self._lanes)
        begin, end = T.Bind(self._weights[block]), T.Bind(self._weights[block + 1])
        turns = T.Bind((end - begin) // together)
        with T.serial(0, turns) as turn:
            for number in range(together):
                vector = T.Bind(begin + turn * together + number)
                self._multiply(sums, number * pixels, gathered, source, vector, pixels)
        if together > 1:
            with T.serial(begin + turns * together, end) as vector:
                self._multiply(sums, 0, gathered, source, vector, pixels)
        totals = [sums[number] for number in range(pixels)]
        for turn in range(1, together):
            totals = [T.Bind(total + sums[turn * pixels + number]) for number, total in enumerate(totals)]
        return [T.Bind(total) for total in totals]

    def _multiply(
        self, sums: emit.Registers, first: int, gathered: Any, source: Expr, vector: Expr, pixels: int
    ) -> None:
        lanes, packing = self._lanes, self._work.packing
        start = T.Bind(source + self._weights[packing.positions + vector])
        bits = self._weights[emit.ramp(packing.numbers + vector * lanes, lanes)]
        weights = T.Bind(tirx.reinterpret(emit.wide("float32", lanes), bits))
        if lanes > _BY_ELEMENT or self._stride % lanes:
            for pixel in range(pixels):
                factor = T.Bind(emit.splat(gathered[start + pixel], lanes))
                sums[first + pixel] = emit.multiply_add(self._machine, sums[first + pixel], weights, factor)
            return
        for group in range(0, pixels, lanes):
            factors = T.Bind(gathered[emit.ramp(start + group, lanes)])
            for element in range(min(lanes, pixels - group)):
                index = first + group + element
                sums[index] = emit.multiply_add(self._machine, sums[index], weights, factors, element)

    def store_transposed(self, gathered: Any, row: Expr, column: int, vectors: Sequence[Expr]) -> None:
        """Store vectors of inputs of as many pixels, so that the pixels of each input lie together.

        Args:
            gathered: The gathered data.
            row: Number of the first input.
            column: Number of the first pixel.
            vectors: One for each pixel; zeros are added up to the number of lanes.
        """
        missing = self._lanes - len(vectors)
        rows = [*vectors, *[emit.splat(0.0, self._lanes)] * missing]
        for number, vector in enumerate(emit.transpose(rows)):
            T.buffer_store(gathered, vector, [emit.ramp((row + number) * self._stride + column, self._lanes)])
