"""What is known of processors by their LLVM targets."""

from __future__ import annotations

import pytest
import tvm

from tests.support.cpu_kernels import AARCH64, ARMV7, NATIVE
from toolchain.backends.cpu.machine import machine
from toolchain.errors import InputError


@pytest.mark.parametrize(("target", "lanes", "registers", "cores"), [(AARCH64, 4, 32, 4), (ARMV7, 4, 16, 2)])
def test_arm(target, lanes, registers, cores):
    actual = machine(target)
    assert (actual.lanes, actual.registers, actual.cores) == (lanes, registers, cores)
    assert actual.loads_apart
    assert actual.limits_nan


@pytest.mark.parametrize("triple", ["riscv64-linux-gnu", "i686-linux-gnu"])
def test_a_processor_that_is_not_supported_is_none_of_the_others(triple):
    with pytest.raises(InputError, match=f"'{triple}' is not supported"):
        machine(tvm.target.Target({"kind": "llvm", "mtriple": triple}))


def test_a_target_without_a_triple_is_this_machine():
    assert machine(tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})).lanes == 16


def test_only_32_bit_arm_adds_products_by_an_instruction_of_its_own_and_rounds_by_none():
    assert [(item.vmla, item.rounds) for item in map(machine, (ARMV7, AARCH64, NATIVE))] == [
        (True, False),
        (False, True),
        (False, True),
    ]
