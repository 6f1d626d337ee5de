"""Cycles of blocks of Arm code by LLVM's description of a core (llvm-mca)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import _arm_model
from benchmarks._arm_model import Cost, Counts
from benchmarks._arm_sysroot import Sysroot
from toolchain import files
from toolchain.errors import BuildError

_COVERED = 0.995  # of the instructions: the rest takes as long on average
_REPEATED = 100
_FEATURES = "+dotprod,+fullfp16,+i8mm,+lse,+bf16,+rcpc"
# What follows a jump that is taken is not in the block; its target is of no matter.
_JUMP, _FAR_JUMP = re.compile(r"^bl?\t.*"), re.compile(r"^(ret|blr|br)\b.*")
_REGION = re.compile(r"^\[\d+\] Code Region - r(\d+)$.*?^Total Cycles:\s+(\d+)$", re.MULTILINE | re.DOTALL)


class Cycles:
    """Counts the cycles of blocks on one core, and remembers them in a file.

    Args:
        sysroot: Has LLVM's programs.
        llvm: What LLVM calls the core.
        memory: The file.
    """

    def __init__(self, sysroot: Sysroot, llvm: str, memory: Path) -> None:
        self._sysroot, self._llvm, self._memory = sysroot, llvm, memory
        self._known: dict[str, float] = json.loads(memory.read_text()) if memory.exists() else {}

    def cost(self, counts: Counts) -> Cost:
        """Return what a run takes."""
        blocks = most(counts, _COVERED)
        missing = [code for code in blocks if code not in self._known]
        if missing:
            self._known.update(zip(missing, self._count(missing), strict=True))
            files.write_atomic(self._memory, json.dumps(self._known).encode())
        covered = sum(_arm_model.length(code) * times for code, times in blocks.items())
        cycles = sum(self._known[code] * times for code, times in blocks.items())
        return Cost(counts.instructions, cycles * counts.instructions / covered, counts.lines)

    def _count(self, blocks: Sequence[str]) -> list[float]:
        words = [self._sysroot.llvm("llvm-mc"), "--disassemble", "-triple=aarch64", "-mattr=+all"]
        text = self._sysroot.run(words, input=hexadecimal(blocks)).stdout
        words = [self._sysroot.llvm("llvm-mca"), "-mtriple=aarch64", f"-mcpu={self._llvm}", f"-mattr={_FEATURES}"]
        words += [f"-iterations={_REPEATED}", "-resource-pressure=0", "-instruction-info=0"]
        words.append("-skip-unsupported-instructions=lack-sched")  # atomic additions, which are few
        answer = self._sysroot.run(words, input=regions(text, [_arm_model.length(code) for code in blocks])).stdout
        return cycles(answer, len(blocks))


def most(counts: Counts, share: float) -> dict[str, int]:
    """Return the blocks with the most instructions, as many as have a share of all."""
    order = sorted(counts.blocks.items(), key=lambda item: _arm_model.length(item[0]) * item[1], reverse=True)
    wanted, chosen = share * counts.instructions, dict[str, int]()
    for code, times in order:
        if wanted <= 0:
            break
        chosen[code] = times
        wanted -= _arm_model.length(code) * times
    return chosen


def hexadecimal(blocks: Iterable[str]) -> str:
    """Return code as llvm-mc reads it: a line for each block."""
    rows = (" ".join(f"0x{code[at : at + 2]}" for at in range(0, len(code), 2)) for code in blocks)
    return "\n".join(rows) + "\n"


def regions(disassembled: str, lengths: Sequence[int]) -> str:
    """Return the blocks as llvm-mca reads them: a named region for each.

    Args:
        disassembled: What llvm-mc wrote of all blocks.
        lengths: How many instructions each has.

    Raises:
        BuildError: These are not as many instructions.
    """
    rows = [row.strip() for row in disassembled.splitlines() if row.strip() and not row.strip().startswith(".text")]
    if len(rows) != sum(lengths):
        raise BuildError(f"llvm-mc knows {len(rows)} of {sum(lengths)} instructions")
    lines, at = [], 0
    for number, length in enumerate(lengths):
        body = [_JUMP.sub("b\t#64", _FAR_JUMP.sub("br\tx30", row)) for row in rows[at : at + length]]
        lines += [f"# LLVM-MCA-BEGIN r{number}", *body, f"# LLVM-MCA-END r{number}"]
        at += length
    return "\n".join(lines) + "\n"  # without the last newline, llvm-mca ignores the last region


def cycles(answer: str, count: int) -> list[float]:
    """Return the cycles of each block from what llvm-mca wrote.

    Raises:
        BuildError: It did not count all of them.
    """
    found = {int(number): int(total) / _REPEATED for number, total in _REGION.findall(answer)}
    if len(found) != count:
        raise BuildError(f"llvm-mca counted {len(found)} of {count} blocks")
    return [found[number] for number in range(count)]
