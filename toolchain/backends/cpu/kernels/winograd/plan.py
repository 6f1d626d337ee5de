"""How Winograd convolution is cut into work, and what that is estimated to cost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.direct.plan import bytes_of
from toolchain.backends.cpu.kernels.winograd.algebra import TAPS
from toolchain.backends.cpu.layers import Conv
from toolchain.backends.cpu.machine import Machine

STRIP = 8
"""Tiles of a row whose inputs are transformed together."""

_BY_ELEMENT = 4  # lanes of the machines that multiply by one element of a vector; others load it into all lanes
_BLOCKS = (1, 2, 3, 4, 5, 6, 7)  # of a group
_WEIGHTS_AHEAD = 8
_MOST_TILES = 28  # whose sums 32 registers hold, beside operands
_MOST_PASSES = 8  # through a group's weights
_MOST_BYTES = 8 * 1024**2  # of all transformed inputs

# In units of one vector multiply-add; measured on a processor with two of 512 bits a cycle.
_LOAD = 0.1  # of an operand beside the products
_GEMM = 4  # to fill and drain a block of sums
_MOVE_INPUT, _MOVE_OUTPUT = 1.5, 1.4  # a vector that is loaded or stored by a transform, mostly in the second level
_EXPAND = {2: 60.0, 4: 85.0}  # to transform a column of the weights of a channel and an output block
_REGION = 16_000  # to set the cores to work once more
_CACHE = 0.06  # a byte from a cache behind the first level
_LARGE = 0.02  # a byte of transformed inputs, if those fill more than half of the second level
_MEMORY = {16: 0.17, 8: 0.25, 4: 0.35}  # for lanes: a byte from memory, which all cores share
_ALONE = 1.35  # times as long takes a core that reads alone, or the same as the others
_LEAST_SUMS = 10  # latency times throughput of multiply-adds


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        tile: Height and width of an output tile: 2 or 4.
        tiles: Tiles whose sums are kept in registers at once.
        passes: How often that is done before the next weights are taken.
        blocks: Output blocks whose sums are kept in registers at once.
        fused: 1 if a core transforms the inputs of `tiles * passes` tiles and then does all with them; 0 if all inputs
            are transformed first, and the cores share the output blocks.
    """

    tile: int
    tiles: int
    passes: int
    blocks: int
    fused: int


@dataclass(frozen=True)
class WinogradPlan:
    """Sizes that follow from a layer and its settings.

    Attributes:
        layer: The layer.
        lanes: Lanes of a vector.
        config: The settings.
    """

    layer: Conv
    lanes: int
    config: Config

    @property
    def side(self) -> int:
        """Height and width of an input tile."""
        return self.config.tile + 2

    @property
    def components(self) -> int:
        """Elements of a transformed tile."""
        return self.side**2

    @property
    def down(self) -> int:
        """Rows of tiles of an image."""
        return -(-self.layer.out.height // self.config.tile)

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return -(-self.layer.out.width // self.config.tile)

    @property
    def all_tiles(self) -> int:
        """Tiles of all images."""
        return self.layer.out.batch * self.down * self.across

    @property
    def chunk(self) -> int:
        """Tiles that are worked on together."""
        return self.config.tiles * self.config.passes

    @property
    def chunks(self) -> int:
        """How many chunks there are; the last one may be incomplete."""
        return -(-self.all_tiles // self.chunk)

    @property
    def groups(self) -> int:
        """Groups of output blocks."""
        return self.layer.out.blocks // self.config.blocks

    @property
    def by_element(self) -> bool:
        """Whether inputs are taken from vectors, all lanes one after the other."""
        return self.lanes == _BY_ELEMENT or self.layer.is_half

    @property
    def inputs(self) -> int:
        """Input channels that are multiplied, with those that fill up the last block if they cannot be left out."""
        data = self.layer.data
        return data.blocks * data.lanes if self.by_element else data.channels

    @property
    def strip(self) -> int:
        """Most tiles of a strip."""
        return min(self.chunk, self.across, STRIP)

    @property
    def packed(self) -> tuple[int, ...]:
        """Shape of the packed weights: [groups, components, channels in, blocks of a group, lanes]."""
        return (self.groups, self.components, self.inputs, self.config.blocks, self.lanes)

    # One line more than is needed keeps the components of a tile out of the same set of the cache.

    @property
    def input_line(self) -> int:
        """Elements of one component of a chunk's transformed inputs: [blocks in][tiles][lanes]."""
        return (self.layer.data.blocks * self.chunk + 1) * self.lanes

    @property
    def output_line(self) -> int:
        """Elements of one component of a chunk's products: [blocks of a group][tiles][lanes]."""
        return (self.config.blocks * self.chunk + 1) * self.lanes

    @property
    def transformed_size(self) -> int:
        """Elements of a chunk's transformed inputs."""
        return self.components * self.input_line

    @property
    def columns_size(self) -> int:
        """Elements of a strip's inputs, with their columns transformed."""
        return (self.strip * self.config.tile + 2) * self.side * self.lanes

    @property
    def halves_size(self) -> int:
        """Elements of a chunk's products for one group, with their columns transformed."""
        return self.config.tile * self.side * self.output_line

    @property
    def products_size(self) -> int:
        """Elements of one column of components of a chunk's products for one group."""
        return self.side * self.output_line

    def shares(self, cores: int) -> int:
        """Into how many parts the input blocks of a chunk are cut, for the cores to share their transform."""
        return emit.count_shares(self.chunks, self.layer.data.blocks, cores)

    def fused(self, cores: int) -> bool:
        """Whether a core does all with a chunk: because that is wanted, or nothing else could be shared."""
        return bool(self.config.fused) or (self.chunks == 1 and 1 in {self.groups, self.shares(cores)})


def configs(layer: Conv, machine: Machine, *, compact: bool = False) -> list[tuple[Config, float]]:
    """List the candidates with their cost: the best of each tile size, group of blocks and arrangement.

    Args:
        layer: The layer.
        machine: The processor.
        compact: Whether weights have their own size, and the kernel transforms them.
    """
    best = []
    for tile, blocks, fused in itertools.product((2, 4), _BLOCKS, (1, 0)):
        if layer.out.blocks % blocks:
            continue
        # All tiles and passes of a tile size, group and arrangement; only the cheapest is a candidate.
        tried = [
            (config, cost(WinogradPlan(layer, machine.lanes, config), machine, compact=compact))
            for tiles, passes in itertools.product(range(1, _MOST_TILES + 1), range(1, _MOST_PASSES + 1))
            if _fits(config := Config(tile, tiles, passes, blocks, fused), layer, machine)
        ]
        best += sorted(tried, key=lambda candidate: candidate[1])[:1]
    return sorted(best, key=lambda candidate: candidate[1])


def _fits(config: Config, layer: Conv, machine: Machine) -> bool:
    plan = WinogradPlan(layer, machine.lanes, config)
    # LLVM loads weights of float16 ahead where each is used for one block alone.
    weights = _WEIGHTS_AHEAD if config.blocks == 1 and layer.is_half else config.blocks
    operands = weights + (config.tiles + 2 if plan.by_element else 1)
    registers = config.tiles * config.blocks + operands
    if registers > machine.registers or plan.chunk >= plan.all_tiles + config.tiles:
        return False
    return bool(config.fused) or (
        not plan.fused(machine.cores) and bytes_of(plan.layer) * plan.chunks * plan.transformed_size <= _MOST_BYTES
    )


def cost(plan: WinogradPlan, machine: Machine, *, compact: bool = False) -> float:
    """Estimate the time of the busiest core, in units of one vector multiply-add; arguments as `configs`."""
    blocks = plan.layer.data.blocks
    transform, group = plan.chunk * _transform(plan), _gemm(plan, machine) + plan.chunk * _finish(plan)
    each = bytes_of(plan.layer)
    weights, inputs = (
        plan.components * plan.inputs * plan.layer.out.blocks * plan.lanes * each,
        plan.transformed_size * each,
    )
    if compact:
        weights = weights // plan.components * TAPS**2
        group += plan.side * plan.inputs * plan.config.blocks * _EXPAND[plan.config.tile]
    fused = plan.fused(machine.cores)
    resident = inputs if fused else plan.chunks * inputs
    group += _LARGE * inputs if 2 * resident > machine.l2_bytes else 0
    if fused:
        turns = -(-plan.chunks // machine.cores)
        work = turns * (blocks * transform + plan.groups * group)
        again = float((turns - 1) * (weights if weights + inputs > machine.l2_bytes else 0))
    else:
        rounds = -(-plan.chunks * plan.groups // machine.cores)
        work = -(-plan.chunks * blocks // machine.cores) * transform + rounds * group
        work += _REGION if machine.cores > 1 else 0
        turns = min(plan.chunks, rounds)
        panels = weights / plan.groups
        again = rounds * inputs if resident > machine.l2_bytes else 0
        again += rounds * (1 - 1 / turns) * (panels if panels + inputs > machine.l2_bytes else 0)
    reads_alone = fused or machine.cores == 1
    first = _either(work / turns, weights * _MEMORY[machine.float32_lanes] * (_ALONE if reads_alone else 1))
    return first + _either(work * (1 - 1 / turns), again * _CACHE)


def _either(*costs: float) -> float:
    """Return the cost of things done at the same time: little more than the greatest."""
    return float(sum(cost**4 for cost in costs) ** 0.25)


def _gemm(plan: WinogradPlan, machine: Machine) -> float:
    """Return the cost of multiplying the inputs of a chunk with the weights of a group."""
    tiles, blocks, passes = plan.config.tiles, plan.config.blocks, plan.config.passes
    bytes_of_step = blocks * plan.lanes * bytes_of(plan.layer)
    loads = blocks + tiles / (plan.lanes if plan.by_element else 1) + bytes_of_step / emit.LINE / passes
    step = max(tiles * blocks, loads, _LEAST_SUMS) + _LOAD * loads
    far = (
        passes if plan.inputs * bytes_of_step > machine.l1_bytes else 1
    )  # passes whose weights are not in the first level
    each = far * _either(step, bytes_of_step * _CACHE) + (passes - far) * step
    return plan.components * (plan.inputs * each + passes * (2 * tiles * blocks + _GEMM))


def _transform(plan: WinogradPlan) -> float:
    """Return the cost of transforming the inputs of one tile and block."""
    side = plan.side
    columns = plan.config.tile + 2 / plan.strip
    operations = {2: 4, 4: 14}[plan.config.tile]
    return (columns + side) * operations + _MOVE_INPUT * 2 * side * (columns + side)


def _finish(plan: WinogradPlan) -> float:
    """Return the cost of making one tile of results of one block of its products, for all blocks of a group."""
    side, tile, layer = plan.side, plan.config.tile, plan.layer
    vectors = 2 if layer.is_half else 1  # rows are transformed in float32, which takes two vectors for one of float16
    operations = {2: 3, 4: 12}[tile] * (side + vectors * tile) + (vectors + len(layer.epilogue)) * tile**2
    reads = sum(op.other is not None for op in layer.epilogue)
    moves = side**2 + (1 + vectors) * side * tile + (1 + reads) * tile**2
    return plan.config.blocks * (operations + _MOVE_OUTPUT * moves)
