"""What the templates need to know of a processor: vector width, registers, caches, dot-product instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import tvm
from tvm.target import codegen

from toolchain import architecture
from toolchain.architecture import Architecture, Isa

Dot = Literal["vpdpbusd", "sdot", ""]

_KIB = 1024


@dataclass(frozen=True)
class Machine:
    """One kind of processor.

    Attributes:
        lanes: 32-bit floats in one vector register; also the channels of one block.
        registers: Vector registers.
        dot: Instruction that adds four products of bytes to each 32-bit lane; empty if there is none.
        cores: Cores that share the work.
        l1_bytes: Data cache of one core, first level.
        l2_bytes: Cache of one core, second level.
        loads_apart: Whether only loads read memory; on x86 a product may take one of its factors from there.
        limits_nan: Whether maximum and minimum are NaN if either operand is; on x86 they are the second then.
        vmla: Whether products are added by an instruction that LLVM does not choose by itself; see `multiply_add`.
        rounds: Whether an instruction rounds floats to whole numbers; see `round_to_int`.
    """

    lanes: int
    registers: int
    dot: Dot = ""
    cores: int = 1
    l1_bytes: int = 32 * _KIB
    l2_bytes: int = 512 * _KIB
    loads_apart: bool = False
    limits_nan: bool = False
    vmla: bool = False
    rounds: bool = True


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
            return _arm(processor, features, cores)
        case Isa.X86:
            return _x86(processor, features, cores)
        case _:
            assert_never(processor.isa)


def _arm(processor: Architecture, features: set[str], cores: int) -> Machine:
    is_64_bit = processor.bits == 64  # noqa: PLR2004
    return Machine(
        lanes=processor.lanes,
        registers=32 if is_64_bit else 16,
        dot="sdot" if "dotprod" in features else "",
        cores=cores,
        loads_apart=True,
        limits_nan=True,
        vmla=not is_64_bit,
        rounds=is_64_bit,
    )


def _x86(processor: Architecture, features: set[str], cores: int) -> Machine:
    dot: Dot = "vpdpbusd" if features & {"avx512vnni", "avxvnni"} else ""
    if "avx512f" in features:
        return Machine(16, 32, dot, cores, l2_bytes=1024 * _KIB)
    return Machine(8 if "avx" in features else processor.lanes, 16, dot, cores)
