"""What is known of CPUs is known to LLVM as well."""

from __future__ import annotations

import itertools

import pytest
from tvm.target import Target, codegen

from toolchain import board
from toolchain.architecture import MACHINES
from toolchain.device.probe import hardware_tables


def features(machine: str, mcpu: str) -> set[str]:
    target = {"kind": "llvm", "mtriple": MACHINES[machine].triple, "mcpu": mcpu}
    return {str(name) for name in codegen.llvm_get_cpu_features(Target(target))}


def names(machine: str) -> set[str]:
    return {
        str(name)
        for name in codegen.llvm_get_cpu_archlist(Target({"kind": "llvm", "mtriple": MACHINES[machine].triple}))
    }


@pytest.mark.parametrize("machine", ["aarch64", "armv7l"])
def test_llvm_has_each_part(machine):
    cores = {core.mcpu for core in hardware_tables.cpus().parts.values() if machine == "aarch64" or not core.only64}
    has_64_bits = {name for name in cores if name not in {f"cortex-a{number}" for number in (5, 7, 8, 9, 12, 15, 17)}}
    assert (has_64_bits if machine == "aarch64" else cores) <= names(machine)


def test_parts_use_what_llvm_says():
    """Or a core that lacks some of it would get code for it."""
    table = hardware_tables.cpus()
    for core in table.parts.values():
        if core.mcpu in names("aarch64"):
            used = features("aarch64", core.mcpu) & (table.features.keys() - {"neon", "vfp4", "v7", "hwdiv"})
            assert used == set(core.uses), core.mcpu


def test_levels_are_in_order_and_llvm_has_them():
    levels = hardware_tables.cpus().levels["x86_64"]
    sizes = [len(features("x86_64", level.mcpu)) for level in levels]
    assert sizes == sorted(sizes, reverse=True)
    assert levels[-1].flags == ()
    assert len({level.board for level in levels}) == len(levels)


def test_each_level_that_is_higher_needs_flags_of_its_own():
    levels = hardware_tables.cpus().levels["x86_64"]
    for higher, lower in itertools.pairwise(levels):
        assert set(higher.flags) - set(lower.flags)


def test_accelerators_have_a_backend():
    assert {accelerator.backend for accelerator in hardware_tables.accelerators()} <= board.backends().keys()
    for accelerator in hardware_tables.accelerators():
        assert accelerator.devices
        assert accelerator.kinds
        patterns = (*accelerator.libraries, *accelerator.devices, *accelerator.kinds)
        assert not {letter for pattern in patterns for letter in pattern} & set("'\"`$;&|<> ")
