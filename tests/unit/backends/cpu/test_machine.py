"""What is known of processors by their LLVM targets."""

from __future__ import annotations

import pytest

from tests.support.cpu_kernels import AARCH64, ARMV7, NATIVE
from toolchain.backends.cpu.machine import machine


@pytest.mark.parametrize(("target", "lanes", "registers", "cores"), [(AARCH64, 4, 32, 4), (ARMV7, 4, 16, 2)])
def test_arm(target, lanes, registers, cores):
    actual = machine(target)
    assert (actual.lanes, actual.registers, actual.cores) == (lanes, registers, cores)
    assert actual.loads_apart
    assert actual.limits_nan


def test_only_32_bit_arm_adds_products_by_an_instruction_of_its_own_and_rounds_by_none():
    assert [(item.vmla, item.rounds) for item in map(machine, (ARMV7, AARCH64, NATIVE))] == [
        (True, False),
        (False, True),
        (False, True),
    ]
