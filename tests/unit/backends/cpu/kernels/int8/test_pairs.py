"""Convolutions of bytes on Arm cores, under emulation: with dot products, and by pairs of products."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_bytes as int8
from tests.support.cpu_bytes import CORES, conv
from tests.support.cpu_kernels import assembly, unblocked
from toolchain.backends.cpu.kernels.int8 import conv as template
from toolchain.backends.cpu.kernels.int8 import grids
from toolchain.backends.cpu.layers import PostOp
from toolchain.backends.cpu.machine import machine
from toolchain.backends.graph.quantization import Grid

RESIDUAL = (PostOp("quantize"), PostOp("add"), PostOp("relu"))
PAIRED = [core for core, target in CORES.items() if machine(target).adds_pairs]

CASES = {
    "1x1 with tails of channels": ((1, 20, 5, 6), 37, (1, 1), {"epilogue": RESIDUAL}),
    "1x1 of many pixels": ((23, 32, 1, 1), 48, (1, 1), {"epilogue": RESIDUAL}),
    "3x3": ((1, 32, 9, 11), 32, (3, 3), {"padding": (1,) * 4, "epilogue": RESIDUAL}),
    "1x1 of odd columns": ((1, 24, 3, 7), 20, (1, 1), {}),
    "3x3 with steps": ((1, 16, 11, 9), 24, (3, 3), {"padding": (1,) * 4, "strides": (2, 2)}),
    "three channels": ((1, 3, 30, 22), 32, (7, 7), {"padding": (3,) * 4, "strides": (2, 2), "few": True}),
}


def emulated(layer, core, folder, config=None, inputs=None):
    """Return the result of a layer's kernel on a core."""
    target = CORES[core]
    processor, inputs = machine(target), inputs or int8.inputs_of(layer)
    config = config or template.configs(layer, processor)[0][0]
    arguments = int8.arguments(template, layer, processor, config, inputs)
    function = template.kernel(layer, processor, config)
    before = np.full(layer.out.shape, 77, layer.out.dtype)
    return unblocked(int8.emulated(function, arguments, before, folder, target), layer.out)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("core", CORES)
def test_a_layer(core, case, offset, tmp_path):
    data, channels, kernel, options = CASES[case]
    layer = int8.signed(conv(data, channels, kernel, 4, **options, offset=offset))
    layer = replace(layer, unpaired=offset and core in PAIRED)
    int8.close(emulated(layer, core, tmp_path), int8.expected(layer, int8.inputs_of(layer)))


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("core", [*PAIRED, "cortex-a720"])
def test_tiles_that_cost_more(core, share, tmp_path):
    layer = int8.signed(conv((1, 24, 5, 7), 32, (1, 1), 4))
    listed = [config for config, _ in template.configs(layer, machine(CORES[core]))]
    config = listed[int(share * (len(listed) - 1))]
    int8.close(emulated(layer, core, tmp_path, config), int8.expected(layer, int8.inputs_of(layer)))


def sums_of_extremes(core, weight, byte, folder):
    """Return the sums of 64 products of the same two bytes, exactly."""
    layer = int8.signed(conv((1, 64, 3, 5), 8, (1, 1), 4))
    layer = replace(layer, unpaired=weight == -128, out=replace(layer.out, dtype="float32"))
    data, weights = np.full((1, 64, 3, 5), byte, np.int8), np.full((8, 64, 1, 1), weight, np.int16)
    inputs = int8.Inputs(data, Grid(1.0, 0), (), (), weights, np.ones(8), np.zeros(8))
    return emulated(layer, core, folder, inputs=inputs)


@pytest.mark.parametrize(("weight", "byte"), [(-127, -128), (127, -128), (127, 127), (-128, -128), (-128, 127)])
@pytest.mark.parametrize("core", CORES)
def test_the_greatest_products_are_exact(core, weight, byte, tmp_path):
    assert (sums_of_extremes(core, weight, byte, tmp_path) == 64 * weight * byte).all()


def test_only_two_weights_of_the_least_byte_that_meet_overflow():
    weights = np.zeros((5, 6, 3, 3), np.int8)
    weights[0, 1, 0, 0] = weights[0, 2, 0, 0] = weights[0, 3, 0, 1] = -128  # channels 1 and 3 meet at the same tap
    weights[:, 5], weights[:, 3, 1, 1] = -128, -127
    assert not grids.pairs_overflow(weights)
    weights[4, 3, 2, 2] = weights[4, 1, 2, 2] = -128
    assert grids.pairs_overflow(weights)


@pytest.mark.parametrize("unpaired", [False, True])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("core", PAIRED)
def test_the_inner_loop_adds_pairs_without_spills(core, kernel, unpaired):
    target = CORES[core]
    layer = int8.signed(conv((1, 64, 28, 28), 64, (kernel, kernel), 4, padding=(kernel // 2,) * 4))
    layer = replace(layer, unpaired=unpaired)
    processor = machine(target)
    config = template.configs(layer, processor)[0][0]
    text = assembly(template.kernel(layer, processor, config), target)
    loops = [loop for loop in inner_loops(text) if "sadalp" in loop or "vpadal" in loop]
    assert loops
    for loop in loops:
        sums = len(re.findall("sadalp|vpadal", loop))
        assert sums == len(re.findall("smull2?|smlal2|vmull|vmlal", loop)) // (1 if unpaired else 2)
        assert not re.search(r"\[(sp|r11)", loop)
    # Each addition stands for 16 products, or for 8: what is around it is a third or less, in the largest tile.
    length = len(max(loops, key=len).splitlines())
    assert length <= (3 if unpaired else 4.8) * len(re.findall("sadalp|vpadal", max(loops, key=len)))


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("core", "instruction"), [("cortex-a76", "sdot"), ("cortex-a720", "smmla")])
def test_the_inner_loop_of_a_core_with_dot_products_has_no_spills(core, instruction, kernel):
    target = CORES[core]
    processor = machine(target)
    layer = int8.signed(conv((1, 64, 28, 28), 64, (kernel, kernel), 4, padding=(kernel // 2,) * 4, epilogue=RESIDUAL))
    config = template.configs(layer, processor)[0][0]
    text = assembly(template.kernel(layer, processor, config), target)
    assert text.count(instruction) >= config.rows * config.columns * config.blocks
    assert "Spill" not in text


def inner_loops(text):
    """Return the instructions of the loops without branches or labels inside."""
    loops, label, lines = [], "", []
    for line in text.splitlines():
        if found := re.match(r"(\.LBB\w+):", line):
            label, lines = found[1], []
        elif re.match(r"\t[a-z]", line):
            lines.append(line)
            if re.match(rf"\tb\S*\s+{re.escape(label)}$", line) and label:
                loops.append("\n".join(lines))
    return loops
