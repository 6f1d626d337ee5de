"""What rules are told of a board's GPU, by way of the target."""

from __future__ import annotations

import dataclasses

import pytest
import tvm

from tests.unit.backends.mali.test_layers import convolution
from toolchain import board
from toolchain.backends.mali import gpu, layers, schedules, tiles
from toolchain.backends.mali.backend import Mali
from toolchain.backends.mali.gpu import Means
from toolchain.records.lines import Key
from toolchain.records.metaschedule import target_table

BOARDS = {"rk3399": 4, "hikey970": 12, "odroid-n2": 2, "rk3588": 4}


def target(name: str) -> tvm.target.Target:
    return Mali(board.load(name).resolved()).target


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_file_s_gpu_is_what_rules_count_on(name):
    means = gpu.means(target(name))
    assert (means.cores, means.registers, means.vectors) == (BOARDS[name], 64, 11)
    assert (means.items, means.groups) == (128 * BOARDS[name], 4 * BOARDS[name])


@pytest.mark.parametrize("name", ["opencl-local", "android-mali"])
def test_a_gpu_that_is_not_described_has_the_defaults(name):
    assert gpu.means(target(name)) == Means()


@pytest.mark.parametrize("model", ["", "adreno", "g610", "g610-mp", "mali-mp4", "-mp4"])
def test_a_model_that_is_not_known_has_the_defaults(model):
    described = {"kind": "opencl", "device": "mali", **({"model": model} if model else {})}
    assert gpu.means(tvm.target.Target(described)) == Means()


def test_every_known_gpu_says_how_many_registers_there_are():
    for name, table in board.gpus().items():
        assert gpu.means(tvm.target.Target({"kind": "opencl", "model": f"{name}-mp3"})).registers == table["registers"]


def test_records_are_the_same_for_a_board_with_and_without_its_gpu():
    kind = board.load("rk3588").resolved()
    without = Mali(dataclasses.replace(kind, gpu=None)).target
    assert Key.of(target_table(without)) == Key.of(target_table(target("rk3588")))


@pytest.mark.parametrize("name", BOARDS)
@pytest.mark.parametrize(
    ("size", "reduced", "channels", "window", "stride"),
    [(56, 64, 128, 1, 1), (14, 512, 512, 1, 1), (7, 512, 1024, 1, 1), (28, 64, 64, 3, 1), (56, 64, 64, 3, 2)],
)
def test_plans_of_all_boards_keep_their_cores_busy_within_their_registers(
    name, size, reduced, channels, window, stride
):
    """As far as the layer is large enough for that: a work-item's least is four channels of one pixel."""
    gpu_target, means = target(name), gpu.means(target(name))
    function = convolution(size, reduced, channels, window, stride)
    plan = tiles.plans(layers.layer_of(function), means)[0]
    pixels = (size // stride) ** 2
    items = -(-pixels // (plan.rows * plan.columns)) * channels // 4
    assert items >= min(means.items, pixels * channels // 4) // 2
    assert plan.loading is not tiles.Loading.DIRECT
    schedule = schedules.Tiles().apply(function, gpu_target, tunable=False)
    assert schedules.registers(schedule) <= means.vectors


def test_fewer_registers_give_smaller_tiles():
    """A GPU whose work-items have half the registers."""
    function = convolution(28, 64, 64)
    sizes = []
    for registers in (64, 32):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu, "means", lambda _target, registers=registers: Means(registers=registers))
            sizes.append(schedules.registers(schedules.Tiles().apply(function, target("rk3588"), tunable=False)))
    assert sizes[1] <= 5 < sizes[0] <= 11
