"""How windows lie on an image, and how work on them is cut."""

from __future__ import annotations

import itertools

import pytest

from tests.support.cpu_kernels import MIDDLE, NARROW, WIDE, layer_of
from toolchain.backends.cpu.kernels import window
from toolchain.backends.cpu.kernels.window import Side


def brute(side: Side) -> list[list[int]]:
    """List which pixels each window sees, from an image that is really padded."""
    padded = [None] * side.before + list(range(side.size)) + [None] * (side.after + side.taps * side.dilation)
    starts = range(0, side.windows * side.stride, side.stride)
    windows = [[padded[start + tap * side.dilation] for tap in range(side.taps)] for start in starts]
    return [[pixel for pixel in item if pixel is not None] for item in windows]


SIDES = [
    Side(7, 7, 3, 1, 1, 1, 1),
    Side(112, 56, 3, 2, 1, 1, 1),
    Side(5, 3, 3, 2, 1, 0, 2),
    Side(9, 9, 3, 1, 4, 4, 4),
    Side(1, 1, 5, 1, 1, 2, 2),
    Side(3, 1, 3, 1, 1, 0, 0),
    Side(6, 3, 1, 2, 1, 0, 0),
]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_spans_cover_every_window_once(side, size):
    actual = window.spans(side, size)
    windows = [
        (span.start + number * span.size + activation, span.inside[activation])
        for span in actual
        for number in range(span.count)
        for activation in range(span.size)
    ]
    assert [number for number, _ in windows] == list(range(side.windows))
    assert [sum(inside) for _, inside in windows] == [len(pixels) for pixels in brute(side)]


def test_like_tiles_share_a_span():
    assert [(span.start, span.count, span.size) for span in window.spans(SIDES[1], 7)] == [(0, 1, 7), (7, 7, 7)]


def test_padding_behind_the_last_window_does_not_count():
    # A window of three at pixel 4 of 5 with one pixel of padding: one inside, one in the padding, one beyond.
    side = Side(5, 3, 3, 2, 1, 0, 1)
    assert side.inside(2) == (True, False, False)
    assert side.padded(2) == 2
    assert side.padded(0) == 3


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW])
@pytest.mark.parametrize(("size", "kernel"), [(112, 3), (14, 3), (7, 5), (1, 3), (56, 7), (64, 31)])
def test_configs_fit(machine, size, kernel):
    layer = layer_of((1, 96, size, size), 96, (kernel, kernel), machine.lanes, padding=(kernel // 2,) * 4, groups=96)
    candidates = window.configs(layer, machine)
    assert candidates
    assert [cost for _, cost in candidates] == sorted(cost for _, cost in candidates)
    for config, cost in candidates:
        assert cost > 0
        assert config.columns <= size
        assert layer.out.blocks % config.blocks == 0
        assert config.columns * config.blocks < machine.registers


def test_narrow_images_get_tiles_of_several_blocks():
    layer = layer_of((1, 960, 7, 7), 960, (5, 5), 16, padding=(2,) * 4, groups=960)
    best, _ = window.configs(layer, WIDE)[0]
    assert best.columns * best.blocks > 8


def test_costs_grow_with_the_work():
    sizes = [7, 14, 28, 56, 112]
    costs = [
        window.configs(layer_of((1, 64, size, size), 64, (3, 3), 16, padding=(1,) * 4, groups=64), WIDE)[0][1]
        for size in sizes
    ]
    assert all(2 < more / less < 6 for less, more in itertools.pairwise(costs))
