"""A board's processor: its LLVM target, and what the templates know of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tvm

from tests.support.cpu_kernels import AARCH64, ARMV7, NATIVE
from toolchain import board
from toolchain.backends.cpu.machine import cpu_features, llvm_target, machine
from toolchain.errors import InputError


@pytest.mark.parametrize(("target", "lanes", "registers", "cores"), [(AARCH64, 4, 32, 4), (ARMV7, 4, 16, 2)])
def test_arm(target, lanes, registers, cores):
    actual = machine(target)
    assert (actual.lanes, actual.registers, actual.cores) == (lanes, registers, cores)
    assert actual.loads_apart
    assert actual.limits_nan


@pytest.mark.parametrize(
    ("name", "lanes", "registers"), [("riscv64", 4, 8), ("riscv64-v", 4, 32), ("spacemit-k1", 8, 32)]
)
def test_riscv(name, lanes, registers):
    """Templates go by the length of the vectors; without any, registers have one float each."""
    kind = board.load(name).resolved()
    actual = machine(llvm_target(kind))
    assert (actual.lanes, actual.registers, actual.cores, actual.dot) == (lanes, registers, kind.cores, "")
    assert (actual.loads_apart, actual.limits_nan) == (True, False)


@pytest.mark.parametrize(("mcpu", "in_order"), [("cortex-a53", True), ("cortex-a55", True), ("cortex-a72", False)])
def test_cores_that_issue_in_order(mcpu, in_order):
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu})
    assert machine(target).in_order == in_order


@pytest.mark.parametrize("triple", ["s390x-linux-gnu", "i686-linux-gnu"])
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


def test_products_of_bytes():
    dot_products = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"})
    actual = [machine(target) for target in (AARCH64, ARMV7, dot_products)]
    assert [(item.dot, item.adds_pairs, item.widens) for item in actual] == [
        ("smull", True, True),
        ("vmull", True, True),
        ("sdot", False, True),
    ]
    plain = machine(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
    assert (plain.dot, plain.adds_pairs, plain.widens) == ("", False, False)


# --- the LLVM target -------------------------------------------------------------------------------------------------

RPI4 = board.load("rpi4").resolved()


def with_target(kind, **fields):
    return dataclasses.replace(kind, target=dataclasses.replace(kind.target, **fields))


def test_a_boards_cpu_and_cores():
    actual = llvm_target(RPI4)
    assert (actual.kind.name, actual.attrs["mtriple"], actual.attrs["mcpu"]) == ("llvm", RPI4.triple, RPI4.target.mcpu)
    assert actual.attrs["num-cores"] == RPI4.cores
    assert "num-cores" not in llvm_target(dataclasses.replace(RPI4, cores=0)).attrs


def test_features_of_the_board_file_are_passed_on():
    actual = llvm_target(with_target(RPI4, mattr=("+dotprod",)))
    assert [str(item) for item in actual.attrs["mattr"]] == ["+dotprod"]


@pytest.mark.parametrize(("name", "abi"), [("pynq", "hard"), ("rpi4", "")])
def test_floats_are_passed_as_the_triple_says(name, abi):
    assert llvm_target(board.load(name).resolved()).attrs.get("mfloat-abi", "") == abi


@pytest.mark.parametrize(("name", "abi"), [("riscv64", "lp64d"), ("spacemit-k1", "lp64d"), ("rpi4", "")])
def test_the_calling_convention_of_risc_v(name, abi):
    assert llvm_target(board.load(name).resolved()).attrs.get("mabi", "") == abi


@pytest.mark.parametrize(
    ("mcpu", "hint"), [("z80", "such as generic"), ("cortex-a73x", "did you mean cortex-a73"), ("haswell", "generic")]
)
def test_a_cpu_that_llvm_does_not_know_for_the_triple(mcpu, hint):
    with pytest.raises(InputError, match=f"no CPU named '{mcpu}' for {RPI4.triple}") as caught:
        llvm_target(with_target(RPI4, mcpu=mcpu))
    assert hint in caught.value.hint


@pytest.mark.parametrize("triple", ["foo64-linux-gnu", "s390x-linux-gnu", "i686-linux-gnu"])
def test_a_processor_that_is_not_supported(triple):
    with pytest.raises(InputError, match=f"the triple '{triple}' is not supported") as caught:
        llvm_target(dataclasses.replace(RPI4, triple=triple))
    assert RPI4.triple in caught.value.hint


def test_the_flags_of_a_board_file_are_those_that_it_names():
    assert cpu_features(dataclasses.replace(RPI4, cpu_features=("asimd", "crc32"))) == ("asimd", "crc32")


def test_the_flags_of_this_machine_are_flags_that_it_has(native):
    actual = cpu_features(with_target(native, mcpu=board.NATIVE))
    output = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    assert actual
    assert set(actual) <= set(output)
