"""What each kernel of a library executes on Arm, by the blocks of instructions that the plugin of QEMU counted.

A block is told by its place in the file. The symbols say whose it is: LLVM keeps those of parallel loops to itself, so
code behind the end of a function is the body of its parallel loop. What kernels call, stubs of other libraries and the
compiler's own functions, is theirs by the number of calls.
"""

from __future__ import annotations

import bisect
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_COUNTED = re.compile(r"^block (\d+) (\d+) (\d+) (\d+)$", re.MULTILINE)
_HEAD = re.compile(r"([0-9a-f]+) <(.+)> \(File Offset: (0x[0-9a-f]+)\):")
_LINE = re.compile(r" *([0-9a-f]+):\t([^@;<]*)(?:<([^>+]+)>)?")
_CALL = re.compile(r"blx?\t")
_PREFIX, _SUFFIX = "__tvm_ffi_", "_compute_"
_DEEPEST = 3  # functions of the compiler that call each other


class Block(NamedTuple):
    """Instructions that are executed one after the other: the first one's place in the file, and how many they are."""

    offset: int
    length: int


class Owner(NamedTuple):
    """Whose instructions are: a function's, or those of its parallel loop."""

    name: str
    parallel: bool


class Instruction(NamedTuple):
    """An instruction: whose, as objdump writes it, and the function that it calls if it does."""

    owner: Owner
    text: str
    to: str


@dataclass(frozen=True)
class Cost:
    """What is executed.

    Attributes:
        instructions: Of the library itself.
        called: Of other libraries, for it.
        cycles: Of both.
    """

    instructions: float = 0
    called: float = 0
    cycles: float = 0

    def plus(self, other: Cost, share: float = 1.0) -> Cost:
        """Return the sum of this and a share of another one."""
        return Cost(
            self.instructions + other.instructions * share,
            self.called + other.called * share,
            self.cycles + other.cycles * share,
        )


@dataclass(frozen=True)
class Call:
    """What a kernel executes in one run of the network.

    Attributes:
        name: Its function.
        serial: What one core does.
        parallel: What the cores share.
    """

    name: str
    serial: Cost = Cost()
    parallel: Cost = Cost()

    @property
    def instructions(self) -> int:
        """All instructions."""
        whole = self.serial.plus(self.parallel)
        return round(whole.instructions + whole.called)


def counted(once: str, twice: str) -> Mapping[Block, tuple[int, int]]:
    """Return how often each block is executed in one run, and the instructions that other libraries execute for it.

    Args:
        once: What the plugin wrote of a process with one run.
        twice: That of a process with two.
    """
    times, called = Counter[Block](), Counter[Block]()
    for text, sign in ((twice, 1), (once, -1)):
        for words in _COUNTED.findall(text):
            offset, length, executed, others = map(int, words)
            times[Block(offset, length)] += sign * executed
            called[Block(offset, length)] += sign * others
    return {block: (number, called[block]) for block, number in times.items() if number > 0}


def instructions(library: Path, objdump: str) -> dict[int, Instruction]:
    """Return the instructions of a library by their places in the file."""
    argv = [objdump, "-d", "-F", "--no-show-raw-insn", library]
    text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return listed(text, _ends(library))


def listed(text: str, ends: Mapping[int, int]) -> dict[int, Instruction]:
    """Return instructions by their places in the file.

    Args:
        text: What objdump wrote.
        ends: Where each function ends that is known to, by where it begins.
    """
    found: dict[int, Instruction] = {}
    name, end, shift = "", None, 0
    for line in text.splitlines():
        if head := _HEAD.match(line):
            start = int(head[1], 16)
            name, end = head[2].removeprefix(_PREFIX).removesuffix(_SUFFIX), ends.get(start)
            shift = int(head[3], 16) - start
        elif one := _LINE.match(line):
            address = int(one[1], 16)
            owner = Owner(name, parallel=end is not None and address >= end)
            found[address + shift] = Instruction(owner, one[2].strip(), one[3] or "")
    return found


def _ends(library: Path) -> dict[int, int]:
    with library.open("rb") as stream:
        tables = [one for one in ELFFile(stream).iter_sections() if isinstance(one, SymbolTableSection)]
        symbols = [symbol.entry for table in tables for symbol in table.iter_symbols()]
    starts = ((one["st_value"] & ~1, one["st_size"]) for one in symbols if one["st_info"]["type"] == "STT_FUNC")
    return {start: start + size for start, size in starts if size}


def calls(
    code: Mapping[int, Instruction],
    executed: Mapping[Block, tuple[int, int]],
    kernels: Collection[str],
    cycles: Callable[[str], float],
) -> dict[str, Call]:
    """Return what each kernel executes in a run.

    Args:
        code: The library's instructions.
        executed: How often each block is.
        kernels: The names of the kernels; all other code is executed for them.
        cycles: Returns the cycles of an instruction.
    """
    costs: dict[Owner, Cost] = {}
    callers: dict[str, Counter[Owner]] = {}
    for owner, cost, to, times in _blocks(code, executed, cycles):
        costs[owner] = costs.get(owner, Cost()).plus(cost)
        if to:
            callers.setdefault(to, Counter())[owner] += times
    for _ in range(_DEEPEST):
        costs = _handed_on(costs, callers, kernels)
    found = {name: Call(name) for name in kernels}
    for owner, cost in costs.items():
        if owner.name in found:
            part = "parallel" if owner.parallel else "serial"
            found[owner.name] = replace(found[owner.name], **{part: cost})
    return found


def _blocks(
    code: Mapping[int, Instruction], executed: Mapping[Block, tuple[int, int]], cycles: Callable[[str], float]
) -> Iterator[tuple[Owner, Cost, str, int]]:
    """Yield whose each block is, what it costs, the function that it calls at its end, and how often."""
    places = sorted(code)
    for block, (times, called) in executed.items():
        first = bisect.bisect_left(places, block.offset)
        body = [code[place] for place in places[first : first + block.length]]
        cost = Cost(len(body) * times, called, sum(cycles(one.text) for one in body) * times + called)
        last = body[-1]
        yield body[0].owner, cost, last.to if _CALL.match(last.text) else "", times


def _handed_on(
    costs: Mapping[Owner, Cost], callers: Mapping[str, Counter[Owner]], kernels: Collection[str]
) -> dict[Owner, Cost]:
    """Give what no kernel executes to those that call it."""
    found = {owner: cost for owner, cost in costs.items() if owner.name in kernels}
    for owner, cost in costs.items():
        if owner.name in kernels:
            continue
        by = callers.get(owner.name, Counter())
        for caller, times in by.items():
            found[caller] = found.get(caller, Cost()).plus(cost, times / by.total())
    return found
