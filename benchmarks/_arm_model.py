"""What a run takes on an Arm board, modelled from what QEMU's plugin counted: nothing here is measured.

The core's cycles are those of LLVM's description of it, for each block of instructions by itself, as if the block
were repeated (`_arm_cycles.py`). Memory's are the lines that the last cache reads and writes, at a bandwidth. How the
two add up is the board's rule. Not modelled: the second of three caches, the TLB, branches that are guessed wrong, more
than one thread. The bandwidths and rules were chosen after ncnn's published times were known.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DATA = Path(__file__).with_name("data")
LINE_BYTES = 64
UNFORESEEN_CYCLES = 200
"""What a line takes at most that no prefetcher has foreseen: it bounds the ratios."""


@dataclass(frozen=True)
class Core:
    """A kind of processor.

    Attributes:
        name: What it is called here.
        qemu: What QEMU calls it, or another core with the same instructions.
        llvm: Whose description of LLVM's counts cycles.
        midr: Its identification register.
        flags: Its features in /proc/cpuinfo.
        build: Board type that our build is for.
        l1: First data cache: KiB and ways.
    """

    name: str
    qemu: str
    llvm: str
    midr: int
    flags: str
    build: str
    l1: str

    @property
    def computes_in_half(self) -> bool:
        """Whether it has arithmetic in half precision."""
        return "asimdhp" in self.flags.split()


@dataclass(frozen=True)
class Board:
    """A board with such cores.

    Attributes:
        name: Its key.
        title: What it is called in tables.
        core: The core's name.
        mhz: Clock.
        last: Last cache before memory: KiB and ways.
        gb_s: Gigabytes that one core reads and writes in a second.
        adds: How the times of core and memory add up: `sum`, or `root` of the sum of squares.
    """

    name: str
    title: str
    core: str
    mhz: int
    last: str
    gb_s: float
    adds: str

    def ms(self, core_cycles: float, lines: Lines, adds: str = "") -> float:
        """Return modelled milliseconds.

        Args:
            core_cycles: What the core takes without memory.
            lines: What its last cache reads and writes.
            adds: Another rule than the board's: `sum`, `root`, or `latency`, the sum where each line that is not
                foreseen takes the time of a miss.
        """
        core = core_cycles / self.mhz / 1e3
        memory = lines.total * LINE_BYTES / self.gb_s / 1e6
        match adds or self.adds:
            case "root":
                return math.hypot(core, memory)
            case "latency":
                return core + memory + lines.other * UNFORESEEN_CYCLES / self.mhz / 1e3
            case _:
                return core + memory


@dataclass(frozen=True)
class Lines:
    """Lines of memory that a run takes with one last cache.

    Attributes:
        foreseen: Read, following another one of a stream.
        other: Read, in no such order.
        written: Written.
    """

    foreseen: int = 0
    other: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.foreseen + self.other + self.written


@dataclass(frozen=True)
class Counts:
    """What the plugin counted.

    Attributes:
        blocks: How often each block of code was executed, by its bytes in hexadecimal.
        lines: Lines of memory, by the KiB of the last cache.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)
    lines: Mapping[int, Lines] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        """All instructions."""
        return sum(length(code) * times for code, times in self.blocks.items())


def length(code: str) -> int:
    """Return how many instructions a block has."""
    return len(code) // 8


def counted(text: str) -> Counts:
    """Read what the plugin wrote."""
    blocks, lines = Counter[str](), {}
    for kind, *words in map(str.split, text.splitlines()):
        if kind == "block":
            blocks[words[1]] += int(words[0])
        else:
            kib, *numbers = map(int, words)
            lines[kib] = Lines(*numbers)
    return Counts(blocks, lines)


def difference(more: Counts, less: Counts) -> Counts:
    """Return what a process with one more run took for that run."""
    blocks = {code: times - less.blocks.get(code, 0) for code, times in more.blocks.items()}
    lines = {kib: _rest(one, less.lines[kib]) for kib, one in more.lines.items()}
    return Counts({code: times for code, times in blocks.items() if times > 0}, lines)


def _rest(more: Lines, less: Lines) -> Lines:
    return Lines(more.foreseen - less.foreseen, more.other - less.other, more.written - less.written)


@dataclass(frozen=True)
class Cost:
    """What one run of a network takes on a core.

    Attributes:
        instructions: All instructions.
        core_cycles: Modelled cycles of the core, without memory.
        lines: Lines of memory, by the KiB of the last cache.
    """

    instructions: int
    core_cycles: float
    lines: Mapping[int, Lines]

    def ms(self, board: Board, adds: str = "") -> float:
        """Return the modelled milliseconds on a board with this core."""
        return board.ms(self.core_cycles, self.lines[kib(board.last)], adds)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        lines = {str(size): [one.foreseen, one.other, one.written] for size, one in self.lines.items()}
        return {"instructions": self.instructions, "core_cycles": round(self.core_cycles), "lines": lines}


def cost(document: Mapping[str, Any]) -> Cost:
    """Read what `Cost.document` wrote."""
    lines = {int(size): Lines(*numbers) for size, numbers in document["lines"].items()}
    return Cost(document["instructions"], document["core_cycles"], lines)


def kib(cache: str) -> int:
    """Return the size of a cache, written as KiB and ways."""
    return int(cache.partition(":")[0])


def bounds(ours: Cost, theirs: Cost, board: Board) -> tuple[float, float]:
    """Return the least and the greatest ratio of both times, whatever the rule."""
    ratios = [ours.ms(board, rule) / theirs.ms(board, rule) for rule in ("sum", "root", "latency")]
    return min(ratios), max(ratios)


def cores() -> dict[str, Core]:
    """Return the cores by name."""
    return {name: Core(name=name, **row) for name, row in _table()["cores"].items()}


def boards() -> dict[str, Board]:
    """Return the boards by name."""
    return {name: Board(name=name, **row) for name, row in _table()["boards"].items()}


def _table() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads((_DATA / "arm_boards.toml").read_text(encoding="utf-8"))
