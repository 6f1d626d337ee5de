"""A board's processor: its LLVM target, and what the templates need to know of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, assert_never

import tvm
from tvm.target import codegen

from toolchain import architecture
from toolchain.architecture import Architecture, Isa
from toolchain.board import NATIVE, Board, load
from toolchain.errors import InputError, did_you_mean

Dot = Literal["vpdpbusd", "sdot", "smull", "vmull", ""]
Bfloat16 = Literal["vdpbf16ps", "portable", ""]

_KIB = 1024
_AMX = {"amx-tile", "amx-bf16", "amx-int8"}
_VLEN = re.compile(r"zvl([0-9]+)b")
_IN_ORDER = frozenset(f"cortex-a{number}" for number in (5, 7, 8, 35, 53, 55, 510, 520))


@dataclass(frozen=True)
class Machine:
    """One kind of processor.

    Attributes:
        lanes: 32-bit floats in one vector register; also the channels of one block.
        registers: Vector registers.
        dot: Instruction that multiplies bytes: it adds four products to each 32-bit lane or, on Arm cores without such
            dot products, widens each product to int16; empty if layers on bytes compute in floats.
        cores: Cores that share the work.
        l1_bytes: Data cache of one core, first level.
        l2_bytes: Cache of one core, second level.
        in_order: Whether it issues instructions in their order, and so waits where a factor is not loaded yet.
        loads_apart: Whether only loads read memory; on x86 a product may take one of its factors from there.
        limits_nan: Whether maximum and minimum are NaN if either operand is; on x86 they are the second then.
        vmla: Whether products are added by an instruction that LLVM does not choose by itself; see `emit.multiply_add`.
        permutes: Whether an instruction takes one of 16 floats for each lane, by the lowest bits of a whole number.
        rounds: Whether an instruction rounds floats to whole numbers; see `numerics`.
        tiles: Whether it has a matrix unit, AMX, which multiplies tiles of bfloat16 and of bytes.
        bfloat16: How layers in bfloat16 add the products of pairs: by an instruction, or by several; empty if no layer
            is in bfloat16.
        float16: Whether tensors in blocks, and products, are in float16; then `lanes` are those of 16 bits, and a
            vector of as many float32 takes two of the processor's registers, so that `registers` are half of them.
        weight_bits: Bits that weights of large fully connected layers are rounded to; 0 to leave them as they are.
        i8mm: Whether an Arm core multiplies bytes as matrices: two rows of eight by two columns.
        adds_bytes: Whether instructions of x86 add products of bytes in pairs as int16, and pairs of int16 as int32.
    """

    lanes: int
    registers: int
    dot: Dot = ""
    cores: int = 1
    l1_bytes: int = 32 * _KIB
    l2_bytes: int = 512 * _KIB
    in_order: bool = False
    loads_apart: bool = False
    limits_nan: bool = False
    vmla: bool = False
    permutes: bool = False
    rounds: bool = True
    tiles: bool = False
    bfloat16: Bfloat16 = ""
    float16: bool = False
    weight_bits: int = 0
    i8mm: bool = False
    adds_bytes: bool = False

    @property
    def float32_lanes(self) -> int:
        """32-bit floats in one vector register, whatever tensors in blocks are."""
        return self.lanes // 2 if self.float16 else self.lanes

    @property
    def widens(self) -> bool:
        """Whether it adds products of int16 to 32-bit sums, four at a time."""
        return self.dot in {"sdot", "smull", "vmull"}

    @property
    def adds_pairs(self) -> bool:
        """Whether it adds two products of bytes as int16 before they are added to a 32-bit sum."""
        return self.dot in {"smull", "vmull"}


def machine(target: tvm.target.Target) -> Machine:
    """Describe the processor of an LLVM target.

    Raises:
        InputError: Its triple is not supported.
    """
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    cores = int(target.attrs.get("num-cores", 1))
    triple = target.attrs.get("mtriple") or codegen.llvm_get_system_triple()
    processor = architecture.of_triple(str(triple))
    match processor.isa:
        case Isa.ARM:
            described = _arm(processor, features, cores)
            return replace(described, in_order=str(target.attrs.get("mcpu", "")) in _IN_ORDER)
        case Isa.RISCV:
            return _riscv(processor, features, cores)
        case Isa.X86:
            return _x86(processor, features, cores)
        case _:
            assert_never(processor.isa)


def _arm(processor: Architecture, features: set[str], cores: int) -> Machine:
    is_64_bit = processor.bits == 64  # noqa: PLR2004
    without_dot_products: Dot = "smull" if is_64_bit else "vmull"
    return Machine(
        lanes=processor.lanes,
        registers=32 if is_64_bit else 16,
        dot="sdot" if "dotprod" in features else without_dot_products,
        i8mm=is_64_bit and {"dotprod", "i8mm"} <= features,
        cores=cores,
        loads_apart=True,
        limits_nan=True,
        vmla=not is_64_bit,
        rounds=is_64_bit,
    )


def _riscv(processor: Architecture, features: set[str], cores: int) -> Machine:
    """Return a processor with vectors of a known length (VLEN), or with 32 registers for single floats."""
    lengths = [int(match[1]) for name in features if (match := _VLEN.fullmatch(name))]
    if "v" not in features or not lengths:
        return Machine(processor.lanes, 32 // processor.lanes, cores=cores, loads_apart=True)
    return Machine(max(lengths) // 32, 32, cores=cores, loads_apart=True, in_order=True)


def _x86(processor: Architecture, features: set[str], cores: int) -> Machine:
    dot: Dot = "vpdpbusd" if features & {"avx512vnni", "avxvnni"} else ""
    if "avx512f" in features:
        adds_bytes, tiles = "avx512bw" in features, features >= _AMX
        return Machine(16, 32, dot, cores, l2_bytes=1024 * _KIB, permutes=True, adds_bytes=adds_bytes, tiles=tiles)
    lanes = 8 if "avx" in features else processor.lanes
    return Machine(lanes, 16, dot, cores, adds_bytes=("avx2" if lanes == 8 else "ssse3") in features)  # noqa: PLR2004


def with_bfloat16(machine: Machine, target: tvm.target.Target) -> Machine:
    """Return the x86-64 processor of a target, with layers in bfloat16."""
    has_instruction = "avx512bf16" in {str(name) for name in codegen.llvm_get_cpu_features(target)}
    return replace(machine, bfloat16="vdpbf16ps" if has_instruction else "portable")


def check_float16(target: tvm.target.Target, board: str) -> None:
    """Check that the kernels in float16 are for a processor.

    Args:
        target: The processor.
        board: The board's name.

    Raises:
        InputError: It has no arithmetic in half precision, or is not a 64-bit Arm core.
    """
    processor = architecture.of_triple(str(target.attrs["mtriple"]))
    if (processor.isa, processor.bits) != (Isa.ARM, 64):
        raise InputError(
            f"board {board} does not compute in half precision: only the kernels for 64-bit Arm CPUs and for GPUs do",
            hint="leave --float16 out",
        )
    if "fullfp16" not in {str(feature) for feature in codegen.llvm_get_cpu_features(target)}:
        raise InputError(
            f"the CPU of board {board}, {target.attrs['mcpu']}, has no arithmetic in half precision",
            hint="leave --float16 out; cores from Cortex-A55 and A76 on have it",
        )


def with_float16(machine: Machine) -> Machine:
    """Return a processor with tensors in blocks in float16."""
    return replace(machine, lanes=2 * machine.lanes, registers=machine.registers // 2, dot="", float16=True)


def half_registers(machine: Machine) -> Machine:
    """Return a processor of `with_float16` as layers that compute in float16 see it: with all of its registers."""
    return replace(machine, registers=2 * machine.registers)


# --- the LLVM target -------------------------------------------------------------------------------------------------


def llvm_target(board: Board) -> tvm.target.Target:
    """Return the LLVM target of a board; `num-cores` is in it where the board's cores are known.

    Raises:
        InputError: LLVM does not know the board's CPU, or its triple is not supported.
    """
    mcpu, triple = board.target.mcpu, board.triple
    if mcpu == NATIVE:
        mcpu = str(codegen.llvm_get_system_cpu())
    cpus = _cpus(board)
    if mcpu not in cpus:
        generic = [name for name in cpus if name.startswith("generic")] or cpus
        usual = f"one of the {len(cpus)} that it has, such as {generic[0]}"
        raise InputError(
            f"LLVM has no CPU named {mcpu!r} for {triple}",
            hint=f"set target.mcpu in the board file: {did_you_mean(mcpu, cpus) or usual}",
        )
    description: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    if abi := architecture.of_triple(triple).abi:
        description["mabi"] = abi
    if triple.endswith("hf"):  # LLVM passes floats in integer registers unless the ABI is set
        description["mfloat-abi"] = "hard"
    features = [*board.target.mattr, *(_hidden(mcpu) if board.target.mcpu == NATIVE else [])]
    if features:
        description["mattr"] = features
    # MetaSchedule and the kernels' costs count the cores.
    if board.cores:
        description["num-cores"] = board.cores
    return tvm.target.Target(description)


def this_machine() -> tvm.target.Target:
    """Return the LLVM target of this machine, without instructions that Linux or a virtual machine hides."""
    return llvm_target(load("local").resolved())


def _cpus(board: Board) -> list[str]:
    """Name the CPUs that LLVM knows for a board's triple."""
    architecture.of_triple(board.triple)  # LLVM crashes if it does not know the processor itself
    return sorted(map(str, codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": board.triple}))))


def cpu_features(board: Board) -> tuple[str, ...]:
    """Return the features of the board file; for this machine's CPU, the flags that LLVM uses."""
    if board.target.mcpu != NATIVE:
        return board.cpu_features
    used = {_normalized(str(name)) for name in codegen.llvm_get_cpu_features(llvm_target(board))}
    return tuple(sorted(flag for flag in _flags() if _normalized(flag) in used))


def _hidden(mcpu: str) -> list[str]:
    """List what switches off the vector and matrix instructions that CPUs of this kind have, and this one lacks.

    A virtual machine may hide them, and Linux those that it does not support, while LLVM goes by the CPU's model.
    """
    usual = map(str, codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": mcpu})))
    here = {_normalized(flag) for flag in _flags()}
    return sorted(f"-{name}" for name in usual if name.startswith(("avx", "amx")) and _normalized(name) not in here)


def _flags() -> list[str]:
    """List the features that Linux names for this machine's CPU."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return value.split()
    return []


def _normalized(feature: str) -> str:
    # LLVM writes sse4.2 and avx512vnni where the kernel writes sse4_2 and avx512_vnni.
    return feature.replace(".", "").replace("_", "").replace("-", "")
