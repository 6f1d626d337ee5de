"""What a way to cut a direct convolution is likely to cost, and which are worth trying.

Costs are in the time of one vector multiply-add at best, as `kernels.Candidate` has them. Common cores load as many
vectors from the first cache as they multiply in the same time, and finish a multiply-add about eight of those times
after they began it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from toolchain.backends.cpu.kernels.direct.plan import (
    Config,
    DirectPlan,
    Tiles,
    blocks_of_units,
    bytes_of,
    flatten,
    has_few_pixels,
    is_by_element,
)
from toolchain.backends.cpu.layers import Conv
from toolchain.backends.cpu.machine import Machine

_BYTES_OF_LINE = 64
_LATENCY = 7.5
_SHARPNESS = 8  # of the maximum of what limits a step: the limits disturb each other where they are near

# What beginning and ending takes: a band, a tile, each of its sums, a row and a tap of the filter. Many sums that are
# stored at once hold up the next tile.
_BAND, _TILE, _SUM, _BURST, _ROW, _TAP = 40.0, 5.0, 1.5, 0.12, 2.0, 2.5
_LINE = 2.75  # what it takes to bring a cache line of the data from the second cache
_L2_RATE = 18.0  # bytes that the second cache gives
_RATE = 4.0  # bytes that memory gives to one core

_FINEST = 64  # bands that are tried, at most
_MOST, _ALIKE = 6, 3  # candidates in all, and with the same blocks
_WORSE, _NEAR = 1.5, 0.1  # what is no candidate: how much more it costs, how little its columns differ from another's

_VARIED = 4  # candidates whose chunks and bands a tuner varies
_SHARES = (1, 2, 4, 8)  # bands for each core

_UNROLLED = 250  # multiply-adds of a row of the filter up to which LLVM unrolls the taps: then data is held for all
_SPARE = 2  # registers for what is under way, where vectors are used element by element
_WEIGHTS_AHEAD = 8  # registers for weights of float16 that are loaded ahead where each is used for one block
_AHEAD = 4  # registers for pixels of plain float16 that are loaded ahead
_CROWDED = 1.25  # times the registers: what may be held then
_IN_ORDER_ROW = (
    100  # multiply-adds of a row of the filter; of more, LLVM loads pixels ahead for a core that waits for them
)


@dataclass(frozen=True)
class _Work:
    """What a plan makes of a layer, whatever its bands are.

    Attributes:
        images: Images that are convolved with the same weights.
        units: Units of all images that cores share.
        tiles: Tiles of each.
        tile: Cost of a tile, on average.
        first: Cost of the first tile.
        bytes_of_unit: Weights of a unit.
        bytes_of_chunk: Weights of a chunk; of all of it if there is one.
        fetches: Whether the weights that come next are fetched meanwhile.
    """

    images: int
    units: int
    tiles: int
    tile: float
    first: float
    bytes_of_unit: int
    bytes_of_chunk: int
    fetches: bool


def candidates(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List ways to cut a layer with their costs, the cheapest first: few, but different ones."""
    selected: list[tuple[Config, float]] = []
    for config, cost in _all_tiles(flatten(layer), machine):
        similar = [other.columns for other, _ in selected if other.blocks == config.blocks]
        is_new = all(abs(config.columns - columns) > _NEAR * max(config.columns, columns) for columns in similar)
        is_good = not selected or cost <= _WORSE * selected[0][1]
        if is_new and is_good and len(similar) < _ALIKE and len(selected) < _MOST:
            selected.append((config, cost))
    return selected


def variants(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List further ways with their costs: all tiles, and other chunks and bands of the cheapest candidates.

    How much of a cache a core has to itself, and what waiting for another core takes, only a measurement tells.
    """
    layer = flatten(layer)
    rows, varied = _rows_inside(layer), _all_tiles(layer, machine)
    for config, _ in candidates(layer, machine)[:_VARIED]:
        sources = DirectPlan(layer, config).sources
        depths = {config.depth, max(1, config.depth // 2), min(sources, 2 * config.depth), sources}
        for depth in sorted(depths if layer.groups == 1 and layer.keeps_sums else {config.depth}):
            plan = DirectPlan(layer, replace(config, depth=depth))
            if plan.chunks > 1 and plan.of_last < config.blocks:  # as in `_tilings`
                continue
            work = _work(plan, machine, rows)
            bands = {_banded(plan, machine, rows)[0].bands, *(share * machine.cores for share in _SHARES)}
            varied += [
                (replace(plan.config, bands=count), _cost(work, count, machine))
                for count in sorted(bands)
                if count <= work.tiles
            ]
    return varied


def _all_tiles(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """Return every tile of a flattened layer with the bands that cost least, the cheapest first."""
    rows = _rows_inside(layer)
    banded = [_banded(DirectPlan(layer, config), machine, rows) for config in _tilings(layer, machine)]
    return sorted(banded, key=lambda candidate: candidate[1])


def _rows_inside(layer: Conv) -> float:
    """Return how many rows of the filter are inside the image, on average."""
    inside = [
        0 <= row * layer.strides[0] + tap * layer.dilation[0] - layer.padding[0] < layer.data.height
        for row in range(layer.out.height)
        for tap in range(layer.kernel[0])
    ]
    return sum(inside) / layer.out.height


def _tilings(layer: Conv, machine: Machine) -> Iterator[Config]:
    """Yield the tiles that fit into the registers, with the chunks that go with them, uncut into bands."""
    for blocks in blocks_of_units(layer):
        depth = _depth(layer, machine, blocks)
        cut = DirectPlan(layer, Config(1, blocks, depth, 1))
        if cut.chunks > 1 and cut.of_last < blocks:  # sums that nobody needs are never put aside
            continue
        for columns in range(1, machine.registers // blocks + 1):
            count = -(-layer.out.width // columns)
            if -(-layer.out.width // count) != columns:  # as many tiles can be narrower
                continue
            config = Config(columns, blocks, depth, 1)
            if columns == blocks == 1 or _fits(DirectPlan(layer, config), machine):
                yield config


def _fits(plan: DirectPlan, machine: Machine) -> bool:
    """Whether the sums of a tile, weights for them, and data fit into the registers."""
    columns, blocks, registers = plan.config.columns, plan.config.blocks, machine.registers
    if is_by_element(plan.layer):
        # LLVM loads weights of several channels ahead, and without a fused multiply-add it needs room for products.
        is_tall = blocks > columns < plan.layer.out.width
        held = columns * blocks + (_WEIGHTS_AHEAD if blocks == 1 and plan.layer.is_half else blocks)
        if machine.in_order and plan.layer.kernel[1] * columns * blocks * machine.lanes <= _UNROLLED:
            # Such a core waits for what is loaded late, so LLVM loads the pixels of all taps first.
            held += max(0, _reach(plan, columns) - columns - _SPARE)
        return not is_tall and held + columns + _SPARE <= registers
    if plan.layer.is_half and DirectPlan(plan.layer, Config(1, 1, 1, 1)).is_by_pixel(registers):
        # LLVM loads pixels ahead in vectors, and more of them where each is used for one block alone.
        used = columns * blocks + plan.layer.kernel[1] * blocks
        return used + _AHEAD <= registers and (blocks > 1 or plan.layer.out.blocks == 1)
    taps = plan.layer.kernel[1]
    if plan.is_by_pixel(registers):
        return not machine.in_order or taps * columns * blocks <= _IN_ORDER_ROW
    needed = columns * blocks + blocks + 1
    if plan.layer.data.lanes > 1 or taps == 1 or taps * columns * blocks > _UNROLLED:
        return needed <= registers
    return needed <= registers and needed + _reach(plan, columns) <= _CROWDED * registers


def _reach(plan: DirectPlan, columns: int) -> int:
    """Return how many neighbouring pixels so many columns see of a row, at most."""
    (_, taps), (_, stride), (_, dilation) = plan.layer.kernel, plan.layer.strides, plan.layer.dilation
    return min(columns * taps, (columns - 1) * stride + (taps - 1) * dilation + 1)


def _depth(layer: Conv, machine: Machine, blocks: int) -> int:
    """Return how many input blocks go into a chunk: those whose weights fill the first cache; all if that is no use."""
    plan = DirectPlan(layer, Config(1, blocks, 1, 1))
    bytes_of_source = _bytes_of_source(plan)
    limit = machine.l1_bytes if has_few_pixels(layer) else machine.l2_bytes // 2
    is_single = layer.out.height * layer.out.width == 1
    # Sums are put aside in the result, which float16 and bfloat16 are too short for.
    if layer.groups > 1 or is_single or not layer.keeps_sums or plan.sources * bytes_of_source <= limit:
        return plan.sources
    return max(1, machine.l1_bytes // bytes_of_source)


def _bytes_of_source(plan: DirectPlan) -> int:
    height, width = plan.layer.kernel
    return height * width * plan.layer.data.lanes * plan.config.blocks * plan.layer.out.lanes * bytes_of(plan.layer)


def _banded(plan: DirectPlan, machine: Machine, rows: float) -> tuple[Config, float]:
    """Return a setting with the number of bands that costs least, and the cost."""
    work = _work(plan, machine, rows)
    # With few tiles, only those numbers of bands differ that cut them into bands of another size.
    tried: Iterable[int] = range(1, _FINEST + 1)
    if work.tiles <= _FINEST:
        tried = sorted({-(-work.tiles // size) for size in range(1, work.tiles + 1)})
    if plan.small_bands:
        tried = [plan.small_bands]
    cost, bands = min((_cost(work, bands, machine), bands) for bands in tried)
    return replace(plan.config, bands=bands), cost


def _cost(work: _Work, bands: int, machine: Machine) -> float:
    """Estimate what the busiest core spends on a layer."""
    # The busiest core does this many bands; the last ones of a unit may be shorter.
    rounds = -(-work.units * bands // machine.cores)
    share = min(rounds * -(-work.tiles // bands), -(-rounds * work.tiles // bands) + (work.units > 1))
    computing = share * work.tile + rounds * _BAND
    units = -(-rounds // bands) if 2 * work.bytes_of_unit <= machine.l2_bytes else rounds
    if 2 * work.units * work.bytes_of_unit <= machine.l2_bytes * work.images:  # all weights stay for the next image
        units = -(-units // work.images)
    if work.fetches:
        return max(computing, units * work.bytes_of_unit / _RATE) + work.bytes_of_chunk / _RATE
    return computing + units * max(0.0, work.bytes_of_unit / _RATE - work.first)


def _work(plan: DirectPlan, machine: Machine, rows: float) -> _Work:
    """Estimate what a plan costs in units of average reach, with so many rows of the filter inside the image."""
    data, blocks = plan.layer.data, plan.config.blocks
    reaches = [plan.reach(unit) for unit in range(1 if plan.is_whole else plan.units)]
    channels = sum(end - begin for begin, end in reaches) / len(reaches)
    sources = sum(-(-end // data.lanes) - begin // data.lanes for begin, end in reaches) / len(reaches)
    costs = []
    for tiles in plan.tiles:
        row = channels * _row(plan, machine, tiles)
        if data.lanes > 1:
            lines = _reach(plan, tiles.columns) * data.lanes * bytes_of(plan.layer) / _BYTES_OF_LINE
            row += sources * (_TAP * plan.layer.kernel[1] + _LINE * lines)
        sums = blocks * tiles.columns
        ends = _TILE + _SUM * sums + _BURST * sums**2  # to begin and to end a tile
        costs.append(rows * (row + sources * _ROW) + plan.chunks * ends)
    row_cost = sum(cost * tiles.count for cost, tiles in zip(costs, plan.tiles, strict=True))
    bytes_of_source = _bytes_of_source(plan)
    together = plan.units if plan.overlaps else 1  # units that one core takes in turns
    return _Work(
        images=plan.layer.out.batch,
        units=plan.layer.out.batch * plan.units // together,
        tiles=plan.tiles_of_image,
        tile=together * row_cost / plan.tiles_of_row,
        first=together * costs[0],
        bytes_of_unit=together * plan.sources * bytes_of_source,
        bytes_of_chunk=together * min(plan.config.depth, plan.sources) * bytes_of_source,
        fetches=plan.fetches,
    )


def _row(plan: DirectPlan, machine: Machine, tiles: Tiles) -> float:
    """Estimate what one input channel costs with one row of the filter."""
    blocks, counts = plan.config.blocks, [sum(inside) for inside in tiles.inside]
    is_near = plan.config.depth * _bytes_of_source(plan) <= machine.l1_bytes
    # Weights of a chunk that the first cache does not hold come from the second for each tile.
    rate = 0.0 if is_near else machine.lanes * bytes_of(plan.layer) / _L2_RATE
    if plan.is_by_pixel(machine.registers):
        taps = sum(count > 0 for count in counts)
        return _limit(blocks * sum(counts), _reach(plan, max(counts)) + taps * blocks, taps, taps * blocks * rate)
    width = machine.lanes if is_by_element(plan.layer) else 1
    return sum(_limit(blocks * count, blocks + count / width, 1, blocks * rate) for count in counts if count)


def _limit(products: int, loads: float, turns: int, weights: float) -> float:
    """Return how long it takes to multiply and to load, to finish turns on each sum, and to bring the weights."""
    limits = (float(products), loads, _LATENCY * turns, weights)
    return float(sum(limit**_SHARPNESS for limit in limits) ** (1 / _SHARPNESS))
