"""From a scheduled kernel to its instructions.

TVM's passes give each tensor in SRAM the size of its tile. There remain loops around blocks, and each block with
the loops that only it has is one nest: a transfer, a reset, a sum of products, an ALU operation. Control flow does not
depend on data, so that the other loops are run right here: each nest is analysed once and recorded in each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import tvm
from tvm import ir, s_tir, tirx

from toolchain.backends.vta.codegen.accesses import Accesses, Around, Limit, Walk, elements_of, memory_of
from toolchain.backends.vta.codegen.nests import DISTANCE, Loop, Nest, plan_nest
from toolchain.backends.vta.codegen.recorder import Recorder, UopSequence
from toolchain.backends.vta.codegen.transfers import Transfer
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.isa.instructions import AluOp, Memory
from toolchain.backends.vta.isa.stream import Buffer, Stream
from toolchain.errors import BuildError

_PASSES = ir.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
    ]
)
_ALU_OPS = {
    tirx.Add: AluOp.ADD,
    tirx.Max: AluOp.MAX,
    tirx.Min: AluOp.MIN,
    tirx.RShift: AluOp.SHR,
    tirx.LShift: AluOp.SHR,
}

_SHARES = (1, 2, 4, 8)
"""Of the room for micro-ops, the parts that a nest may take one of: fewer micro-ops where those of all do not fit."""

Emit = Callable[[Sequence[int]], None]
"""Records a nest in one pass of the loops around it, whose passes are given."""


@dataclass(frozen=True)
class _Repeat:
    """A loop that is run while recording."""

    extent: int
    body: list[_Repeat | Emit]


@dataclass
class _Tile:
    """The slots of a tensor in SRAM: one, or two that take turns.

    Attributes:
        memory: The SRAM.
        starts: The first element of each slot.
        contents: For each slot, the passes of the loops that its contents depend on.
        current: The slot in use.
    """

    memory: Memory
    starts: tuple[int, ...]
    contents: list[tuple[int, ...] | None]
    current: int = -1

    @property
    def start(self) -> int:
        return self.starts[self.current]

    def turn(self) -> None:
        """Go on to the next slot."""
        self.current = (self.current + 1) % len(self.starts)

    def recall(self, key: tuple[int, ...]) -> bool:
        """Go to the slot with some contents, or take the next slot for them; return whether they are loaded already."""
        if key in self.contents:
            self.current = self.contents.index(key)
            return True
        self.turn()
        self.contents[self.current] = key
        return False


def lower(
    module: tvm.IRModule,
    buffers: Sequence[Buffer],
    slots: Mapping[Memory, int],
    config: VtaConfig,
    revision: Revision,
) -> Stream:
    """Return the instructions of a scheduled kernel.

    Args:
        module: The module of a schedule; its one function is the kernel.
        buffers: Its arguments.
        slots: How many tiles of one tensor each SRAM holds.
        config: The machine.
        revision: The revision of its instructions.

    Raises:
        BuildError: The tiles do not fit, or the machine cannot run a nest.
    """
    function = _PASSES(module)["main"]
    streams: list[Stream] = []
    # Micro-ops of large nests push out those of others, which are then loaded again in each pass: with smaller shares
    # all fit at once, at the price of more refills of the pipeline. The program with the fewest instructions is taken.
    for share in _SHARES:
        recorder = Recorder(config, revision, buffers)
        lowering = _Lowering(recorder, config, slots, [parameter.name for parameter in function.params], share)
        _run(lowering.compile(function.body, Around()), ())
        streams.append(recorder.finish())
        if not recorder.overflowed:
            break
    return min(streams, key=lambda stream: len(stream.instructions))


def _run(steps: Sequence[_Repeat | Emit], values: tuple[int, ...]) -> None:
    for step in steps:
        if not isinstance(step, _Repeat):
            step(values)
            continue
        for value in range(step.extent):
            _run(step.body, (*values, value))


class _Lowering:
    def __init__(
        self,
        recorder: Recorder,
        config: VtaConfig,
        slots: Mapping[Memory, int],
        arguments: Sequence[str],
        share: int,
    ) -> None:
        self._recorder = recorder
        self._config = config
        self._slots = slots
        self._arguments = arguments
        self._share = share
        self._tiles: dict[str, _Tile] = {}

    def compile(self, statement: tirx.Stmt, around: Around) -> list[_Repeat | Emit]:
        """Return the steps of a statement, in order."""
        loops, body = [], statement
        while isinstance(body, tirx.For | s_tir.SBlockRealize):
            if isinstance(body, tirx.For):
                loops.append(body)
                body = body.body
            else:
                body = body.block.body
        if isinstance(body, tirx.BufferStore):
            emit = self._nest(body, loops, around)
            return [emit] if emit else []
        if not isinstance(body, tirx.SeqStmt):
            raise BuildError("VTA cannot run a statement", details=str(body))
        inside = around.inside(loops)
        steps = [step for child in body.seq for step in self.compile(child, inside)]
        for loop in reversed(loops):
            steps = [_Repeat(int(loop.extent), steps)]
        return steps

    def _nest(self, store: tirx.BufferStore, loops: Sequence[tirx.For], around: Around) -> Emit | None:
        access = Accesses(around, around.inside(loops))
        match store.value:
            case tirx.IntImm():
                return self._reset(store, access)
            case tirx.Add(b=tirx.Mul()) as value:
                src, wgt = value.b.a.value, value.b.b.value
                tiles = [self._tiles[buffer.name] for buffer in (store.buffer, src.source, wgt.source)]
                nest, uops = self._plan(access, access.walk(dst=store, src=src, wgt=wgt), *tiles)
                return lambda _: self._recorder.gemm(uops(), nest.outer, nest.inner)
            case (
                tirx.Add() | tirx.Max() | tirx.Min() | tirx.RShift() | tirx.LShift() | ir.Call(args=[_, tirx.Max(), _])
            ) as value:
                return self._alu(store, value, access)
            case tirx.Cast() as value:
                return self._store(store, value.value, access)
            case ir.Call(args=[_, value, outside]):
                return self._load(store, value, access, outside)
            case ir.TensorLoad() as value:
                return self._copy(store, value, access)
        raise BuildError("VTA cannot compute a block", details=str(store))

    def _copy(self, store: tirx.BufferStore, value: Any, access: Accesses) -> Emit | None:
        """Load a tensor, or go on with the sums under another name."""
        if memory_of(value.source) is None:
            return self._load(store, value, access)
        if elements_of(store.buffer) != elements_of(value.source):
            return self._start_maxima(store, value, access)
        self._tiles[store.buffer.name] = self._tiles[value.source.name]
        return None

    def _load(self, store: tirx.BufferStore, value: Any, access: Accesses, outside: Any = None) -> Emit:
        transfer = access.transfer(store.buffer, store.indices, value.source, value.indices)
        memory, buffer = memory_of(store.buffer), self._arguments.index(value.source.name)
        used = [index for index, step in enumerate(transfer.offset.steps) if step]
        different = prod(access.around.extents[index] for index in used)
        # Biases and channel shifts are few: a second slot would not pay.
        slots = 1 if memory is Memory.ACC else min(self._slots[memory], different)
        tile = self._tile(store.buffer, slots, transfer.elements + transfer.clipped)
        filled = isinstance(outside, ir.TensorLoad)
        load = (
            self._load_filled(tile, buffer, transfer, outside.source)
            if filled
            else self._load_zero_padded(tile, buffer, transfer)
        )

        def emit(values: Sequence[int]) -> None:
            if not tile.recall(tuple(values[index] for index in used)):
                load(values)

        return emit

    def _load_zero_padded(self, tile: _Tile, buffer: int, transfer: Transfer) -> Emit:
        """Load a tile, with zeros outside of its tensor."""

        def emit(values: Sequence[int]) -> None:
            for rows in transfer.rows(tile.start, values):
                self._recorder.load(tile.memory, buffer, rows)

        return emit

    def _load_filled(self, tile: _Tile, buffer: int, transfer: Transfer, filling: tirx.Buffer) -> Emit:
        """Load a tile between padding of its slot, and that from a tensor unless it lies there already."""
        source, filling_size, placed = self._arguments.index(filling.name), elements_of(filling), dict[int, Any]()

        def emit(values: Sequence[int]) -> None:
            inside = transfer.inside(values)
            # Padding stays in a slot until a tile with other edges comes.
            if placed.get(tile.start) != inside:
                placed[tile.start] = inside
                for rows in transfer.edges(tile.start, values, filling_size):
                    self._recorder.load(tile.memory, source, rows)
            for rows in transfer.interior(tile.start, values):
                self._recorder.load(tile.memory, buffer, rows)

        return emit

    def _store(self, store: tirx.BufferStore, value: Any, access: Accesses) -> Emit:
        transfer = access.transfer(value.source, value.indices, store.buffer, store.indices)
        tile, buffer = self._tiles[value.source.name], self._arguments.index(store.buffer.name)

        def emit(values: Sequence[int]) -> None:
            for rows in transfer.rows(tile.start, values):
                self._recorder.store(buffer, rows)

        return emit

    def _reset(self, store: tirx.BufferStore, access: Accesses) -> Emit:
        """Make room for sums, at least as many as the distance: what GEMM writes instead of waiting counts too."""
        elements = max(DISTANCE, elements_of(store.buffer))
        slots = min(self._slots[Memory.ACC], prod(access.around.extents))
        tile = self._tile(store.buffer, slots, elements)
        nest, uops = self._plan(access, Walk((Loop(elements, dst=1),)), tile)

        def emit(_: Sequence[int]) -> None:
            # With two slots, sums of the next tile are computed while these are stored.
            tile.turn()
            self._recorder.gemm(uops(), nest.outer, nest.inner, reset=True)

        return emit

    def _start_maxima(self, store: tirx.BufferStore, value: Any, access: Accesses) -> Emit:
        """Start maxima with some of the sums: no instruction copies, so they are added to zeros."""
        reset, source = self._reset(store, access), self._tiles[value.source.name]
        nest, uops = self._plan(access, access.walk(dst=store, src=value), self._tiles[store.buffer.name], source)

        def emit(values: Sequence[int]) -> None:
            reset(values)
            self._recorder.alu(AluOp.ADD, uops(), nest.outer, nest.inner)

        return emit

    def _alu(self, store: tirx.BufferStore, value: Any, access: Accesses) -> Emit:
        """Compute in place, where a condition is met: the result takes the room of the first operand."""
        limits: tuple[Limit, ...] = ()
        if isinstance(value, ir.Call):
            limits, value = access.limits(value.args[0]), value.args[1]
        op, operand = _ALU_OPS[type(value)], value.b
        tiles = [self._tiles[value.a.source.name]]
        self._tiles[store.buffer.name] = tiles[0]
        if isinstance(operand, tirx.IntImm):
            walk, imm = access.walk(dst=store), int(operand)
            # SHR by a negative amount shifts left.
            imm = -imm if isinstance(value, tirx.LShift) else imm
        else:
            walk, imm = access.walk(dst=store, src=operand), None
            tiles.append(self._tiles[operand.source.name])
        # Passes at the edge of an image are shorter, so each extent has a plan of its own.
        plan = cache(lambda passes: self._plan(access, walk.part(passes), *tiles))

        def emit(values: Sequence[int]) -> None:
            passes = walk.passes(limits, values)
            if passes is not None:
                nest, uops = plan(passes)
                self._recorder.alu(op, uops(), nest.outer, nest.inner, imm)

        return emit

    def _tile(self, buffer: tirx.Buffer, slots: int, elements: int) -> _Tile:
        memory = memory_of(buffer)
        start = self._recorder.allocate(memory, slots * elements)
        tile = _Tile(memory, tuple(start + slot * elements for slot in range(slots)), [None] * slots)
        self._tiles[buffer.name] = tile
        return tile

    def _plan(self, access: Accesses, walk: Walk, *tiles: _Tile) -> tuple[Nest, Callable[[], UopSequence]]:
        """Return a nest, and a function of its micro-ops for the current slots of its tiles."""
        bases, runs = prod(len(tile.starts) for tile in tiles), prod(access.around.extents)
        nest = plan_nest(walk.moving, self._config.uop_depth, bases, runs, self._share)
        sequences: dict[tuple[int, ...], UopSequence] = {}

        def sequence() -> UopSequence:
            starts = tuple(tile.start for tile in tiles)
            if starts not in sequences:
                dst, src, wgt = (base + first for base, first in zip((*starts, 0, 0), walk.first, strict=False))
                sequences[starts] = self._recorder.sequence((dst + d, src + s, wgt + w) for d, s, w in nest.uops)
            return sequences[starts]

        return nest, sequence
