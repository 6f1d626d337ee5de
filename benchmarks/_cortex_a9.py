"""How long instructions take on the Cortex-A9 of a Zynq-7000: a small model, which no board has confirmed.

What it rests on:

- An instruction takes the cycles for which it occupies its pipeline, by LLVM's description of that core
  (ARMScheduleA9.td, which was written after Arm's Technical Reference Manuals). NEON has 64 bits for floats: a product
  that is added takes 2 cycles for two and 4 for four, other operations on four floats 2, those on integers 1, products
  of four 32-bit integers 4; a division takes 10. Three or four registers, or one lane, are loaded in 2 cycles; bytes
  and half-words take 2 of the address unit; several registers at once a cycle for each 64 bits.
- All that is not in the table takes 1 cycle, and one instruction is issued in each. The core can issue two, but loads,
  stores, NEON and VFP share one port; what the second one gains is taken to be lost by waiting for results, by
  branches that were guessed wrong, and by the first-level cache.
- Each instruction of other libraries that a kernel calls takes 1 cycle, whatever it is.
- What a call reads and writes comes from memory where it is more than the second-level cache holds. Nothing overlaps.
- Memory moves 800 million bytes a second, read and written ones counted, so that 400 million are copied. That is an
  assumption: no measurement of a Pynq was found, whose DDR3 has 16 bits.
- A loop that is parallel runs on both cores in half of the time, as the runner has two threads on this board; to start
  it takes nothing.

Held against the one public time: TopHub's log of 2019 has 107 ms for ResNet-18's first convolution in float32 on that
core, with a kernel of then. Its 118 million products alone take 91 ms here, on both cores; the kernel that was ours
before the array had that layer takes 115 ms. It bounds the model, and calibrates nothing.
"""

from __future__ import annotations

import re

CLOCK_HZ = 650e6
CORES = 2
CACHE_BYTES = 512 * 1024
MEMORY_BYTES_S = 800e6

_TABLE = tuple(
    (re.compile(pattern), cycles)
    for pattern, cycles in (
        (r"vdiv\.f64|vsqrt\.f64", 20),
        (r"vdiv\.f32|vsqrt\.f32", 10),
        (r"v(n?ml[as]|n?fm[as]|fnm[as]|nmul|mul)\.f64", 2),
        (r"v(ml[as]|fm[as])\.f32\tq", 4),
        (r"v(ml[as]|fm[as])\.f32\td", 2),
        (r"v\w+(\.\w+)*\.f32(\.[su]32)?\tq|vcvt\.[su]32\.f32\tq", 2),
        (r"v(mul|ml[as])\.[isu]32\tq", 4),
        (r"v(mul|ml[as])\.[isu]32\td|v(mul|ml[as])\.[isu](8|16)\tq", 2),
        (r"v(ld|st)[1-4]\.\d+\t\{d\d+\[\d", 2),
        (r"(ld|st)r(s?b|s?h)|muls?\t|mla\t", 2),
        (r"[su]m(ul|la)l", 3),
    )
)
_SEVERAL = re.compile(r"(?:v?ldm|v?stm|v?push|v?pop|v(?:ld|st)[1-4]\.)[\w.]*\t(?:\w+!?, )?\{(.*?)\}")
_RANGE = re.compile(r"([a-z])(\d+)-[a-z](\d+)")


def cycles(instruction: str) -> float:
    """Return the cycles of an instruction.

    Args:
        instruction: Its text as objdump writes it: the operands behind a tab.
    """
    for pattern, taken in _TABLE:
        if pattern.match(instruction):
            return taken
    several = _SEVERAL.match(instruction)
    return max(1.0, _registers(several[1]) / _at_once(instruction)) if several else 1.0


def _registers(names: str) -> float:
    ranges = [(int(high) - int(low), kind) for kind, low, high in _RANGE.findall(names)]
    count = names.count(",") + 1 + sum(more for more, _ in ranges)
    return count * 2 if names.startswith("q") else count


def _at_once(instruction: str) -> int:
    """Return how many of the registers that an instruction names are moved in a cycle."""
    return 1 if instruction.startswith(("vldm", "vstm", "vpush", "vpop")) else 2


def computing_seconds(serial: float, parallel: float) -> float:
    """Return what cycles take.

    Args:
        serial: Those of what one core does.
        parallel: Those of what the cores share.
    """
    return (serial + parallel / CORES) / CLOCK_HZ


def memory_seconds(moved: int) -> float:
    """Return how long a call that reads and writes so many bytes waits for memory."""
    return moved / MEMORY_BYTES_S if moved > CACHE_BYTES else 0.0


def copy_seconds(count: int) -> float:
    """Return what it takes to copy so many bytes: each is read and written."""
    return 2 * count / MEMORY_BYTES_S
