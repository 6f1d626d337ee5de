"""Records instructions in the order of a sequential program, and finds out which tokens let the stages overlap.

The three stages of VTA run in parallel. What an instruction must wait for follows from the elements of SRAM that it and
those before it touched; per pair of neighbouring stages, it is enough to wait for the newest of those instructions, if
nothing behind it has been waited for yet. So each token is given and taken once, both in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from toolchain.backends.vta.codegen.nests import Loop
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.isa.instructions import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
    Tokens,
    Uop,
)
from toolchain.backends.vta.isa.stream import UOPS, Buffer, Stream
from toolchain.errors import BuildError

Elements = slice | npt.NDArray[np.int64]
"""The elements of an SRAM that an instruction touches."""

_NEVER = -1


class Stage(IntEnum):
    """The stages, in the order of the data."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2


@dataclass(frozen=True)
class Rows:
    """A rectangle in DRAM, and the zeros around it in SRAM.

    Attributes:
        sram: First element in SRAM.
        dram: First element in its buffer.
        y_size: Rows.
        x_size: Elements of a row.
        x_stride: Elements of the buffer from one row to the next.
        y_pad: Rows of zeros above and below.
        x_pad: Zeros before and behind each row.
    """

    sram: int
    dram: int
    y_size: int
    x_size: int
    x_stride: int
    y_pad: tuple[int, int] = (0, 0)
    x_pad: tuple[int, int] = (0, 0)

    @property
    def elements(self) -> slice:
        """The elements of SRAM that it takes."""
        size = (self.y_size + sum(self.y_pad)) * (self.x_size + sum(self.x_pad))
        return slice(self.sram, self.sram + size)


@dataclass(frozen=True, eq=False)
class UopSequence:
    """Micro-ops that one instruction runs through.

    Attributes:
        start: The first one's index among those of the stream.
        uops: dst, src and wgt of each, a row for each.
    """

    start: int
    uops: npt.NDArray[np.int64]


@dataclass
class _Accesses:
    """The latest instructions that wrote and read each element of an SRAM."""

    last_write: npt.NDArray[np.int64]
    last_read: npt.NDArray[np.int64]

    @classmethod
    def none(cls, depth: int) -> _Accesses:
        return cls(np.full(depth, _NEVER), np.full(depth, _NEVER))


@dataclass
class _Uops:
    """The micro-ops of the stream, and where SRAM holds which sequence."""

    all: list[Uop] = field(default_factory=list)
    sequences: dict[tuple[tuple[int, int, int], ...], UopSequence] = field(default_factory=dict)
    addresses: dict[UopSequence, int] = field(default_factory=dict)
    free: int = 0
    overflowed: bool = False


class Recorder:
    """A program under construction."""

    def __init__(self, config: VtaConfig, revision: Revision, buffers: Iterable[Buffer]) -> None:
        self._config = config
        self._revision = revision
        self._buffers = tuple(buffers)
        self._instructions: list[Instruction] = []
        self._tokens: list[dict[str, bool]] = []
        self._relocations: list[tuple[int, int]] = []
        self._free = dict.fromkeys((Memory.WGT, Memory.INP, Memory.ACC), 0)
        self._uops = _Uops()
        self._accesses = {
            memory: _Accesses.none(config.depth(memory)) for memory in (Memory.INP, Memory.WGT, Memory.OUT)
        }
        self._last_waits: dict[tuple[Stage, Stage], int] = {}
        self._footprints: dict[tuple[UopSequence, Loop, Loop], tuple[Elements, Elements, Elements]] = {}

    def allocate(self, memory: Memory, elements: int) -> int:
        """Take elements of an SRAM; return the first one.

        Raises:
            BuildError: There are too few left.
        """
        # Tiles live as long as the kernel, so nothing is ever freed.
        start, depth = self._free[memory], self._config.depth(memory)
        if start + elements > depth:
            raise BuildError(
                f"the tiles do not fit in {memory.name}",
                details=f"{start + elements} elements are needed, but there are {depth}",
                hint="choose smaller tiles, or fewer threads",
            )
        self._free[memory] = start + elements
        return start

    def load(self, memory: Memory, buffer: int, rows: Rows) -> None:
        """Load a rectangle of a buffer."""
        self._relocations.append((len(self._instructions), buffer))
        instruction = Load(
            memory, rows.sram, rows.dram, rows.y_size, rows.x_size, rows.x_stride, *rows.y_pad, *rows.x_pad
        )
        self._add(instruction)
        accesses = self._accesses.get(memory)
        if accesses is not None:
            self._wait(Stage.COMPUTE, Stage.LOAD, _latest(accesses.last_read, rows.elements))
            accesses.last_write[rows.elements] = self._last

    def store(self, buffer: int, rows: Rows) -> None:
        """Store results to a rectangle of a buffer."""
        self._relocations.append((len(self._instructions), buffer))
        accesses = self._accesses[Memory.OUT]
        self._add(Store(Memory.OUT, rows.sram, rows.dram, rows.y_size, rows.x_size, rows.x_stride))
        self._wait(Stage.COMPUTE, Stage.STORE, _latest(accesses.last_write, rows.elements))
        accesses.last_read[rows.elements] = self._last

    def sequence(self, uops: Iterable[tuple[int, int, int]]) -> UopSequence:
        """Return the micro-ops as a sequence; the same ones are kept once."""
        key = tuple(uops)
        if key not in self._uops.sequences:
            self._uops.sequences[key] = UopSequence(len(self._uops.all), np.array(key))
            self._uops.all.extend(Uop(*uop) for uop in key)
        return self._uops.sequences[key]

    def gemm(self, sequence: UopSequence, outer: Loop, inner: Loop, *, reset: bool = False) -> None:
        """Add products to ACC, or set it to zero.

        Raises:
            BuildError: UOP is too small for the sequence.
        """
        start = self._resident(sequence)
        end = start + len(sequence.uops)
        self._add(Gemm(start, end, *_loops(outer, inner), outer.wgt, inner.wgt, reset))
        dst, src, wgt = self._footprint(sequence, outer, inner)
        if not reset:
            inp, weights = self._accesses[Memory.INP], self._accesses[Memory.WGT]
            # Both operands come from the load stage: its newest instruction covers the other, too.
            self._wait(Stage.LOAD, Stage.COMPUTE, max(_latest(inp.last_write, src), _latest(weights.last_write, wgt)))
            inp.last_read[src] = weights.last_read[wgt] = self._last
        self._write(dst)

    def alu(self, op: AluOp, sequence: UopSequence, outer: Loop, inner: Loop, imm: int | None = None) -> None:
        """Combine elements of ACC with others, or with a number.

        Raises:
            BuildError: UOP is too small for the sequence, or its operand lies where no micro-op can point.
        """
        # The field of a micro-op for an ALU operand is as wide as INP is deep.
        last, depth = int(sequence.uops[:, 1].max()), self._config.inp_depth
        if last >= depth:
            raise BuildError(
                "an operand of the ALU is outside the range of a micro-op",
                details=f"it is element {last} of ACC, but micro-ops can address {depth} of INP",
                hint="choose smaller tiles",
            )
        start = self._resident(sequence)
        end = start + len(sequence.uops)
        self._add(Alu(op, start, end, *_loops(outer, inner), imm is not None, imm or 0))
        self._write(self._footprint(sequence, outer, inner)[0])

    def finish(self) -> Stream:
        """End the program when all is stored; return it."""
        stores, loads = [_NEVER], [_NEVER]
        for index, instruction in enumerate(self._instructions):
            if isinstance(instruction, Store):
                stores.append(index)
            elif isinstance(instruction, Load) and instruction.memory in self._accesses:
                loads.append(index)
        # An empty LOAD of the compute stage takes the token of the last store, and FINISH comes after it. Nothing may
        # have read what was loaded last, such as a row between those that a stride takes.
        self._add(Load(Memory.UOP, 0, 0, 0, 0, 0))
        self._wait(Stage.STORE, Stage.COMPUTE, stores[-1])
        self._wait(Stage.LOAD, Stage.COMPUTE, loads[-1])
        self._add(Finish())
        instructions = tuple(
            replace(instruction, tokens=Tokens(**tokens)) if tokens else instruction
            for instruction, tokens in zip(self._instructions, self._tokens, strict=True)
        )
        return Stream(
            self._config,
            self._revision,
            self._buffers,
            instructions,
            tuple(self._uops.all),
            tuple(self._relocations),
        )

    @property
    def overflowed(self) -> bool:
        """Whether the micro-ops did not fit together, so that some may have been loaded more than once."""
        return self._uops.overflowed

    @property
    def _last(self) -> int:
        return len(self._instructions) - 1

    def _add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)
        self._tokens.append({})

    def _wait(self, producer: Stage, consumer: Stage, index: int) -> None:
        """Let the last instruction, one of the consumer's, wait for an earlier one of the producer's."""
        # Stages run in order: a stage that has waited for an instruction has waited for all before it.
        if index <= self._last_waits.get((producer, consumer), _NEVER):
            return
        self._last_waits[producer, consumer] = index
        # Tokens for a later stage are pushed to the next FIFO, those for an earlier one to the previous.
        behind = producer < consumer
        self._tokens[index]["push_next" if behind else "push_prev"] = True
        self._tokens[-1]["pop_prev" if behind else "pop_next"] = True

    def _write(self, elements: Elements) -> None:
        """Note that the last instruction writes ACC, and so OUT, which must have been stored."""
        accesses = self._accesses[Memory.OUT]
        self._wait(Stage.STORE, Stage.COMPUTE, _latest(accesses.last_read, elements))
        accesses.last_write[elements] = self._last

    def _resident(self, sequence: UopSequence) -> int:
        """Return where UOP holds a sequence; load it if it does not, into an empty memory if it is full."""
        uops, size = self._uops, len(sequence.uops)
        if sequence in uops.addresses:
            return uops.addresses[sequence]
        # A full memory is emptied as a whole: the compute stage itself loads micro-ops, in order, so nothing has to be
        # waited for.
        if uops.free + size > self._config.uop_depth:
            uops.addresses.clear()
            uops.free, uops.overflowed = 0, True
        start = uops.addresses[sequence] = uops.free
        uops.free += size
        if uops.free > self._config.uop_depth:
            raise BuildError(
                "a loop nest does not fit in UOP",
                details=f"{size} micro-ops are needed, but there is room for {self._config.uop_depth}",
            )
        self._relocations.append((len(self._instructions), UOPS))
        self._add(Load(Memory.UOP, start, sequence.start, 1, size, size))
        return start

    def _footprint(self, sequence: UopSequence, outer: Loop, inner: Loop) -> tuple[Elements, Elements, Elements]:
        # The same nest runs in each pass of the loops around it.
        key = (sequence, outer, inner)
        if key not in self._footprints:
            steps = zip((outer.dst, outer.src, outer.wgt), (inner.dst, inner.src, inner.wgt), strict=True)
            dst, src, wgt = (
                _elements(column, (outer.extent, first), (inner.extent, second))
                for column, (first, second) in zip(sequence.uops.T, steps, strict=True)
            )
            self._footprints[key] = (dst, src, wgt)
        return self._footprints[key]


def _elements(bases: npt.NDArray[np.int64], *loops: tuple[int, int]) -> Elements:
    """Return the elements that a nest touches, as a slice where they have no gap."""
    touched = np.unique(bases)
    for extent, step in loops:
        touched = np.unique(np.add.outer(np.arange(extent) * step, touched))
    first, last = int(touched[0]), int(touched[-1])
    return slice(first, last + 1) if last - first + 1 == len(touched) else touched


def _latest(instructions: npt.NDArray[np.int64], elements: Elements) -> int:
    return int(instructions[elements].max())


def _loops(outer: Loop, inner: Loop) -> tuple[int, int, int, int, int, int]:
    return outer.extent, inner.extent, outer.dst, inner.dst, outer.src, inner.src
