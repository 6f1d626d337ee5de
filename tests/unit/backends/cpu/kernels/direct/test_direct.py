"""Direct convolutions: right on awkward shapes, cut so that all cores are busy, and in registers."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm

from benchmarks import _arm_code
from tests.support import cpu_kernels
from tests.support.cpu_kernels import CONVOLUTIONS, MIDDLE, NARROW, WIDE, layer_of
from toolchain.backends.cpu.kernels import direct
from toolchain.backends.cpu.kernels.direct import Config
from toolchain.backends.cpu.kernels.direct import cost as conv_cost
from toolchain.backends.cpu.kernels.direct import plan as conv_plan
from toolchain.backends.cpu.kernels.direct.plan import DirectPlan
from toolchain.backends.cpu.layers import Activation, Dense, PostOp
from toolchain.backends.cpu.machine import Machine

SERVER = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 4})


def layer(name, lanes, **more):
    return layer_of(lanes=lanes, plain="plain" in name, **CONVOLUTIONS[name], **more)


def default(layer, machine):
    return direct.configs(layer, machine)[0][0]


# --- right -----------------------------------------------------------------------------------------------------


def test_a_column_is_cut_into_tiles_as_a_row_is():
    column = layer_of(data=(1, 64, 128, 1), channels=64, kernel=(5, 1), lanes=WIDE.lanes)
    row = layer_of(data=(1, 64, 1, 128), channels=64, kernel=(1, 5), lanes=WIDE.lanes)
    assert direct.configs(column, WIDE) == direct.configs(row, WIDE)


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_result(name, machine):
    conv = layer(name, machine.lanes, epilogue=(PostOp("relu"),))
    cpu_kernels.check(direct, conv, machine, default(conv, machine))


@pytest.mark.parametrize("name", ["odd channels and sizes", "plain", "deep, pointwise", "groups that narrow"])
def test_result_with_few_registers(name):
    conv = layer(name, MIDDLE.lanes)
    cpu_kernels.check(direct, conv, MIDDLE, default(conv, MIDDLE))


@pytest.mark.parametrize("config", [Config(5, 1, 1, 1), Config(5, 2, 2, 3), Config(13, 1, 3, 9), Config(1, 2, 4, 2)])
def test_result_however_it_is_cut(config):
    conv = layer_of((2, 56, 9, 13), 32, (3, 3), 16, padding=(1, 1, 1, 1), epilogue=(PostOp("add"), PostOp("relu")))
    cpu_kernels.check(direct, conv, WIDE, config)


@pytest.mark.parametrize("config", [Config(6, 1, 4, 1), Config(6, 2, 1, 3), Config(11, 2, 3, 2), Config(4, 1, 4, 4)])
def test_result_however_a_flattened_one_is_cut(config):
    conv = layer_of((2, 56, 3, 7), 32, (1, 1), 16, epilogue=(PostOp("add"),))
    cpu_kernels.check(direct, conv, WIDE, config)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("groups that narrow", 1), ("groups that narrow", 2), ("groups of two blocks and a half", 2), ("two groups", 2)],
)
@pytest.mark.parametrize("bands", [1, 3])
def test_result_of_groups_however_it_is_cut(name, blocks, bands):
    conv = layer(name, 16, epilogue=(PostOp("add"), PostOp("sigmoid")))
    cpu_kernels.check(direct, conv, WIDE, Config(4, blocks, DirectPlan(conv, Config(4, blocks, 1, 1)).sources, bands))


@pytest.mark.parametrize(
    "epilogue",
    [
        (PostOp("scale"), PostOp("shift"), PostOp("clip", (0.0, 6.0))),
        (PostOp("silu"), PostOp("mul")),
        (PostOp("add"), PostOp("sigmoid"), PostOp("scale")),
    ],
    ids=lambda epilogue: " ".join(op.kind for op in epilogue),
)
def test_steps(epilogue):
    conv = layer_of((2, 40, 5, 6), 40, (3, 3), 16, padding=(1, 1, 1, 1), epilogue=epilogue)
    cpu_kernels.check(direct, conv, WIDE, default(conv, WIDE))


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize("lanes", [16, 4])
def test_parts_of_larger_buffers(kernel, lanes):
    machine = WIDE if lanes == 16 else NARROW
    conv = layer_of((2, 32, 5, 6), 24, kernel, lanes, padding=(kernel[0] // 2,) * 4, epilogue=(PostOp("add"),))
    other = replace(conv.out, first=1, held=conv.out.blocks + 1)
    conv = replace(
        conv,
        data=replace(conv.data, first=2, held=conv.data.blocks + 3),
        out=replace(conv.out, first=1, held=conv.out.blocks + 3),
        epilogue=(replace(conv.epilogue[0], other=other),),
    )
    cpu_kernels.check(direct, conv, machine, default(conv, machine))


@pytest.mark.parametrize("epilogue", [("add", "relu"), ("add", "silu")], ids=" ".join)
@pytest.mark.parametrize("config", [Config(5, 2, 2, 1), Config(3, 3, 2, 3), Config(2, 4, 2, 1)], ids=str)
def test_the_last_unit_may_have_fewer_blocks(config, epilogue):
    conv = layer_of((2, 20, 3, 7), 11 * 16 - 3, (3, 3), 16, padding=(1,) * 4, epilogue=tuple(map(PostOp, epilogue)))
    conv = replace(conv, out=replace(conv.out, first=1, held=conv.out.blocks + 3))
    cpu_kernels.check(direct, conv, WIDE, config)


def test_a_prime_number_of_blocks_is_summed_up_side_by_side():
    """Few columns alone have too few sums to wait for."""
    frames = layer_of((4, 1, 1, 832), 258, (1, 256), 16, plain=True, strides=(1, 128))
    assert (frames.out.blocks, frames.out.width) == (17, 5)
    config = default(frames, replace(WIDE, l2_bytes=2**20))
    assert config.blocks > 1
    assert config.columns * config.blocks >= 8
    assert conv_plan.blocks_of_units(layer_of((1, 16, 4, 4), 96, (3, 3), 16)) == [1, 2, 3, 6]


def test_weights_come_once_for_all_images_of_a_batch():
    item, four = (layer_of((batch, 256, 2, 2), 256, (1, 1), 16) for batch in (1, 4))
    near, far = (replace(WIDE, l2_bytes=size * 1024) for size in (1024, 64))
    costs = [[direct.configs(conv, machine)[0][1] for conv in (item, four)] for machine in (near, far)]
    assert costs[0][1] / costs[0][0] < costs[1][1] / costs[1][0]


def test_sums_that_nobody_needs_are_not_put_aside():
    deep = layer_of((1, 2048, 7, 7), 17 * 16, (3, 3), 16, padding=(1,) * 4)
    for config, _ in direct.configs(deep, WIDE):
        plan = DirectPlan(deep, config)
        assert plan.chunks == 1 or plan.of_last == config.blocks


@pytest.mark.parametrize("name", ["odd channels and sizes", "groups that narrow", "deep, pointwise"])
def test_fillers_become_zero(name):
    conv = replace(layer(name, 16), out=replace(layer(name, 16).out, channels=20), groups=1)
    buffer = cpu_kernels.computed(direct, conv, WIDE, default(conv, WIDE))
    assert buffer[:, 1, :, :, :4].any()
    assert not buffer[:, 1, :, :, 4:].any()


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if "groups" in CONVOLUTIONS[name]])
def test_each_weight_is_packed_once(name):
    conv = layer(name, 16)
    weights = np.arange(1, 1 + np.prod(conv.weights_shape), dtype=np.float32).reshape(conv.weights_shape)
    packed = direct.pack(conv, WIDE, default(conv, WIDE), weights)
    assert np.array_equal(np.sort(packed[packed != 0]), weights.ravel())


# --- what it covers --------------------------------------------------------------------------------------------


def test_covers():
    conv = layer("deep", 16)
    assert direct.covers(conv)
    assert direct.covers(layer("plain", 16))
    assert direct.covers(layer("several from each", 16))
    assert not direct.covers(replace(conv, groups=264, out=replace(conv.out, channels=264)))
    assert not direct.covers(replace(conv, data=replace(conv.data, dtype="int8")))
    assert not direct.covers(Dense(1, 2, 3))


# --- how it is cut ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 7, 13, 17, 27, 35, 55, 73, 147, 149])
@pytest.mark.parametrize("columns", [1, 4, 7, 14, 28])
def test_tiles_cover_a_row(width, columns):
    conv = layer_of((1, 16, 1, width), 16, (1, 3), 16, padding=(0, 1, 0, 1))
    actual = [
        (tiles.number + n, tiles.start + n * tiles.columns, tiles.columns)
        for tiles in conv_plan.cut_row(conv, columns)
        for n in range(tiles.count)
    ]
    sizes = [size for _, _, size in actual]
    assert [number for number, _, _ in actual] == list(range(-(-width // columns)))
    assert [start for _, start, _ in actual] == [0, *itertools.accumulate(sizes)][:-1]
    assert sum(sizes) == width
    assert max(sizes) - min(sizes) <= 1


def test_a_wide_row_without_padding_is_cut_alike():
    conv = layer_of((1, 16, 1, 100), 16, (1, 1), 16)
    assert [(tiles.count, tiles.columns) for tiles in conv_plan.cut_row(conv, 7)] == [(10, 7), (5, 6)]


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW, Machine(4, 16)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_candidates(name, machine):
    conv = layer(name, machine.lanes)
    candidates = direct.configs(conv, machine)
    costs = [cost for _, cost in candidates]
    assert 1 <= len(candidates) <= 6
    assert costs == sorted(costs)
    assert costs[0] > 0
    for config, _ in candidates:
        assert config.blocks in conv_plan.blocks_of_units(conv)
        assert config.columns * config.blocks < machine.registers


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_variants(name, machine):
    conv = layer(name, machine.lanes)
    for config, cost in direct.variants(conv, machine):
        plan = DirectPlan(conv_plan.flatten(conv), config)
        assert cost > 0
        assert config.columns * config.blocks < machine.registers
        assert 1 <= config.depth <= plan.sources
        assert 1 <= config.bands <= max(plan.tiles_of_image, 1)
        assert plan.chunks == 1 or plan.of_last == config.blocks


@pytest.mark.parametrize("name", ["deep", "two groups"])
def test_result_of_variants(name):
    conv = layer(name, WIDE.lanes, epilogue=(PostOp("relu"),))
    listed = [config for config, _ in direct.configs(conv, WIDE)]
    others = [config for config, _ in direct.variants(conv, WIDE) if config not in listed]
    for config in (others[-1], max(others, key=lambda config: config.bands)):
        cpu_kernels.check(direct, conv, WIDE, config)


@pytest.mark.parametrize("cores", range(1, 17))
@pytest.mark.parametrize(
    ("size", "inputs", "outputs", "taps"),
    [(56, 64, 64, 1), (56, 64, 64, 3), (28, 128, 32, 3), (14, 1024, 256, 1), (14, 256, 256, 3), (7, 512, 2048, 1)],
)
def test_cores_get_equal_shares(size, inputs, outputs, taps, cores):
    conv = layer_of((1, inputs, size, size), outputs, (taps, taps), 16, padding=(taps // 2,) * 4)
    config = default(conv, replace(WIDE, cores=cores))
    plan = DirectPlan(conv_plan.flatten(conv), config)
    ends = [band * plan.tiles_of_image // config.bands for band in range(config.bands + 1)]
    sizes = [end - first for first, end in itertools.pairwise(ends)]
    work = sizes * plan.units
    share = -(-len(work) // cores)  # TVM gives each thread as many neighbouring iterations
    limit = max(sum(work[first : first + share]) for first in range(0, len(work), share))
    assert limit * cores <= 1.15 * sum(work)


def test_more_cores_cost_less():
    conv = layer_of((1, 64, 56, 56), 64, (1, 1), 16)
    item, two, sixteen = (direct.configs(conv, replace(WIDE, cores=cores))[0][1] for cores in (1, 2, 16))
    assert item / 2 < two < 0.55 * item
    assert item / 16 < sixteen < 0.09 * item


def test_weights_that_overflow_the_first_cache_are_cut_into_chunks():
    deep = layer_of((1, 512, 7, 7), 512, (3, 3), 16, padding=(1, 1, 1, 1))
    config = default(deep, WIDE)
    assert DirectPlan(deep, config).chunks > 1
    assert config.depth * config.blocks * 9 * 16 * 16 * 4 <= WIDE.l1_bytes * 1.2
    assert DirectPlan(deep, config).tiles_of_band > 1
    shallow = layer_of((1, 64, 56, 56), 64, (3, 3), 16, padding=(1, 1, 1, 1))
    assert DirectPlan(shallow, default(shallow, WIDE)).chunks == 1


def test_costs_compare_with_the_peak():
    conv = layer_of((1, 256, 28, 28), 256, (3, 3), 16, padding=(1, 1, 1, 1))
    products = conv.flops / 2 / 16
    assert 0.9 * products < direct.configs(conv, replace(WIDE, cores=1))[0][1] < 1.2 * products


# --- code ------------------------------------------------------------------------------------------------------


def loops(assembly):
    """Return the innermost loops: blocks of code that end with a jump back to their beginning."""
    labelled = re.split(r"^(\.LBB\d+_\d+):", assembly, flags=re.MULTILINE)
    pairs = zip(labelled[1::2], labelled[2::2], strict=True)
    jump = r"^\s+(?:j\w+|b\.?\w*|cbn?z\s+\w+,)\s+{}$"
    return [body for label, body in pairs if re.search(jump.format(re.escape(label)), body, re.MULTILINE)]


def test_sums_stay_in_registers():
    conv = layer_of((1, 64, 14, 14), 64, (3, 3), 16, padding=(1, 1, 1, 1))
    assembly = cpu_kernels.assembly(direct.kernel(conv, WIDE, Config(7, 2, 2, 2)), SERVER)
    inner = [body for body in loops(assembly) if "vfmadd" in body]
    assert inner
    for body in inner:
        code = body.split("\n\tj")[0]
        assert len(re.findall(r"vfmadd.*zmm", code)) % 2 == 0
        assert "rsp" not in code
        assert not re.search(r"vmovu?a?ps\s+%zmm", code)
    assert "AllocWorkspace" not in assembly


@pytest.mark.parametrize(
    ("size", "config", "fetches"),
    [(7, Config(13, 2, 8, 1), True), (7, Config(13, 2, 32, 1), True), (56, Config(13, 2, 32, 1), False)],
    ids=["next chunk", "next unit", "many pixels"],
)
def test_weights_that_come_next_are_fetched(size, config, fetches):
    conv = layer_of((1, 512, size, size), 64, (1, 1), 16)
    assembly = cpu_kernels.assembly(direct.kernel(conv, WIDE, config), SERVER)
    assert ("prefetcht1" in assembly) == fetches


def test_multiplies_by_elements_where_vectors_are_narrow():
    conv = layer_of((1, 64, 14, 14), 64, (3, 3), 4, padding=(1, 1, 1, 1))
    assembly = cpu_kernels.assembly(direct.kernel(conv, NARROW, default(conv, NARROW)), cpu_kernels.AARCH64)
    assert len(re.findall(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]", assembly)) > 50
    assert not re.search(r"ld1r", assembly)
    small = Machine(4, 16)
    assembly = cpu_kernels.assembly(direct.kernel(conv, small, default(conv, small)), cpu_kernels.ARMV7)
    assert len(re.findall(r"vmul\.f32\s+q\d+, q\d+, d\d+\[\d\]", assembly)) > 20


def test_a_core_that_issues_in_order_gets_short_rows_of_plain_pixels():
    """The scheduler loads pixels ahead for it: of 19 columns, most would go to the stack and come back."""
    conv = layer_of((1, 3, 224, 224), 64, (7, 7), 4, strides=(2, 2), padding=(3, 3, 3, 3), plain=True)
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53"})
    waiting = replace(NARROW, in_order=True)
    config = default(conv, waiting)
    assert not DirectPlan(conv, config).is_by_pixel(waiting.registers)
    assert DirectPlan(conv, default(conv, NARROW)).is_by_pixel(NARROW.registers)
    loop = _arm_code.product_loops(cpu_kernels.assembly(direct.kernel(conv, waiting, config), target))[0]
    assert loop.share > 0.75
    assert loop.spills <= 4


def test_a_part_is_no_other_task():
    conv = layer("odd channels and sizes", 16)
    number = replace(conv, data=replace(conv.data, first=1, held=9))
    assert direct.configs(number, WIDE) == direct.configs(conv, WIDE)
    assert isinstance(number.data, Activation)
    assert conv_cost.candidates(number, WIDE)[0][0] == default(conv, WIDE)


# --- bands that all units pass over ---------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [32, 40])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_all_units_of_a_large_image_pass_over_a_band_before_the_next(channels, kernel, monkeypatch):
    monkeypatch.setattr(conv_plan, "_LARGE", 0)
    monkeypatch.setattr(conv_plan, "_NEAR", 1024)
    padding = (1, 1, 1, 1) if kernel == (3, 3) else (0, 0, 0, 0)
    conv = layer_of((2, 24, 9, 13), channels, kernel, NARROW.lanes, padding=padding, epilogue=(PostOp("relu"),))
    config = Config(4, 2, 6, 1)
    config = replace(config, bands=DirectPlan(conv_plan.flatten(conv), config).small_bands)
    plan = DirectPlan(conv_plan.flatten(conv), config)
    assert plan.is_by_band
    assert default(conv, NARROW).bands == DirectPlan(conv_plan.flatten(conv), default(conv, NARROW)).small_bands > 1
    cpu_kernels.check(direct, conv, NARROW, config)


def test_bands_of_heavy_weights_stay_large():
    """All weights would come from memory again for each band."""
    light, heavy = (layer_of((1, 256, 128, 128), channels, (1, 1), 8) for channels in (256, 512))
    assert DirectPlan(conv_plan.flatten(light), Config(6, 2, 32, 256)).is_by_band
    assert not DirectPlan(conv_plan.flatten(light), Config(6, 2, 32, 2)).is_by_band
    assert DirectPlan(conv_plan.flatten(heavy), Config(6, 2, 32, 256)).small_bands == 0
