"""What Mesa's compiler prints about the machine code of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MOST_LINES = 200_000
_LONGEST = 4096
_LOG_LINES = 40
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) ([a-z]{1,20})")
_SPILLS = re.compile(r"(\d{1,9}):(\d{1,9}) spills:fills")
_LINE = re.compile(r"SHADER-DB: MESA_SHADER_(?:KERNEL|COMPUTE) shader: (.*)")
_KERNEL = re.compile(r"KERNEL (\S{1,255}) (\d{1,9}) (\d{1,12})")
_ALL_REGISTERS = 64
# What the compilers of the families call the units, and what they are called here.
_UNITS = {
    "fma": "fma",
    "cvt": "convert",
    "sfu": "special",
    "v": "varying",
    "vary": "varying",
    "t": "texture",
    "texture": "texture",
    "ls": "load_store",
    "ldst": "load_store",
    "arith": "arithmetic",
}
LOAD_STORE = "load_store"


@dataclass(frozen=True)
class Statistics:
    """One kernel's machine code; the body of a loop counts once.

    Attributes:
        instructions: How many there are.
        cycles: Cycles of a warp on the busiest unit; those of Midgard are bundles of instructions.
        units: Cycles by unit: `load_store`, `texture`, `varying`, and `fma`, `convert` and `special` or, on Bifrost,
            `arithmetic` for the three.
        threads: Relative number of work-items that have registers at once: with 1, each may use all of them.
        loops: Loops that are left; the compiler unrolls short ones.
        spills: Values that are written to memory as there are not registers enough.
        fills: How often such values are read again.
        work_group: Most work-items of a work-group.
        local_bytes: Local memory of a work-group.
    """

    instructions: int
    cycles: float
    units: Mapping[str, float]
    threads: int
    loops: int
    spills: int
    fills: int
    work_group: int = 0
    local_bytes: int = 0

    @property
    def registers(self) -> int:
        """Most registers of 32 bits that a work-item may use."""
        return _ALL_REGISTERS // max(1, self.threads)

    def unit(self, name: str) -> float:
        """Return the cycles of a unit, 0 for one that the compiler does not report."""
        return self.units.get(name, 0.0)


@dataclass(frozen=True)
class Outcome:
    """What became of one file: a kernel's statistics, or the cause why there are none.

    Attributes:
        name: The kernel.
        statistics: Of its machine code.
        fault: Why there are none.
        answered: Whether that is the compiler's word on the kernel; if not, another time may give another answer.
    """

    name: str = ""
    statistics: Statistics | None = None
    fault: str = ""
    answered: bool = True


@dataclass
class _Reading:
    """The file whose lines are being read."""

    path: str
    line: str = ""
    kernel: tuple[str, int, int] | None = None
    log: list[str] | None = None

    def outcome(self) -> Outcome:
        if self.log is not None:
            return Outcome(fault="\n".join(self.log).strip() or "the compiler refuses it without a message")
        if self.kernel is None:
            return Outcome(fault="it has no kernel")
        name, largest, local = self.kernel
        statistics = parse_statistics(self.line, largest, local)
        return Outcome(
            name, statistics, "" if statistics else f"the compiler printed an unexpected line: {self.line[:200]!r}"
        )


@dataclass
class _Reader:
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    now: _Reading | None = None

    def take(self, line: str) -> None:
        if line.startswith("FILE "):
            self.now = _Reading(line[5:])
        elif self.now is None:
            return
        elif line == "DONE":
            self.outcomes[self.now.path] = self.now.outcome()
            self.now = None
        elif self.now.log is not None:
            self.now.log += [line] if len(self.now.log) < _LOG_LINES else []
        elif line.startswith("FAILED "):
            self.now.log = []
        elif match := _LINE.fullmatch(line):
            self.now.line = match[1]  # of several variants the last is the optimized one
        elif match := _KERNEL.fullmatch(line):
            self.now.kernel = (match[1], int(match[2]), int(match[3]))


def read_outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    """Read what `kernel_statistics` and Mesa wrote.

    Args:
        lines: Their lines; what is too long or too much is left out.

    Returns:
        By path, of each file that was finished; one at which the compiler ended is missing.
    """
    reader = _Reader()
    for _number, line in zip(range(_MOST_LINES), lines, strict=False):
        reader.take(line.rstrip("\n")[:_LONGEST])
    return reader.outcomes


def parse_statistics(text: str, work_group: int = 0, local_bytes: int = 0) -> Statistics | None:
    """Read one line of statistics; None if something that every line has is missing."""
    spills = _SPILLS.search(text)
    numbers = {name: float(value) for value, name in _NUMBER.findall(text)}
    if spills is None or not {"inst", "threads", "loops"} <= numbers.keys():
        return None
    units: dict[str, float] = {}
    for name, unit in _UNITS.items():
        if name in numbers:
            units[unit] = numbers[name]
    cycles = numbers.get("cycles", numbers.get("bundles"))
    if cycles is None:
        return None
    return Statistics(
        instructions=int(numbers["inst"]),
        cycles=cycles,
        units=units,
        threads=int(numbers["threads"]),
        loops=int(numbers["loops"]),
        spills=int(spills[1]),
        fills=int(spills[2]),
        work_group=work_group,
        local_bytes=local_bytes,
    )
